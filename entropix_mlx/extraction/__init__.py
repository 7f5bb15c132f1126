"""Fields of a schema, filled in from documents: what is read, what is asked, and the rows."""
