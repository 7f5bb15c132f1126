"""From tokens to logits and attention scores."""
