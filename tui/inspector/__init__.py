"""One token in detail."""
