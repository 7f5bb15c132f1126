"""Constraints: what an answer may be, which tokens that allows, and the fields of its JSON."""
