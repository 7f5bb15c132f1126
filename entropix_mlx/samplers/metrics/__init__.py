"""Metrics of logits and attention scores."""
