"""Profiles: the numbers that samplers use, in TOML files, and the table of samplers; no MLX."""
