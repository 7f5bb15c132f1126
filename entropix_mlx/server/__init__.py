"""A model served over HTTP."""
