"""A checkpoint written as a new folder."""
