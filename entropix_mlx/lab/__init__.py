"""Experiments on a model."""
