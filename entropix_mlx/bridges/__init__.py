"""Decoding with entropix where another library runs the model."""
