"""A folder of a user's own texts, in which an answer may look things up."""
