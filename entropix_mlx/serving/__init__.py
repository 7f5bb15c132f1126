"""A model behind a thread of its own, for front ends that must not wait for it."""
