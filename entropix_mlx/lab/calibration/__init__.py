"""Calibration: a profile for a model."""
