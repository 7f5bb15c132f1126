"""Tokens proposed ahead of the model."""
