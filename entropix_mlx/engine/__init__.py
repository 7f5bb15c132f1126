"""Many answers in the same forward passes."""
