"""Downloading files that are known beforehand, with resumption, and the demo model so."""
