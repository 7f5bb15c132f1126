"""Functions that a model may call: how its calls are written, constrained and read."""
