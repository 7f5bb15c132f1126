"""A conversation, turn after turn."""
