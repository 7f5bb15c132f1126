"""A model behind a thread of its own, for front ends and clients that must not wait for it."""
