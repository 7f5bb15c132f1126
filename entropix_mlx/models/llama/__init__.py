"""The Llama family, with attention that returns its scores."""
