"""Models that several ranks compute together."""
