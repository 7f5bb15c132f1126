"""Llama as Meta publishes it."""
