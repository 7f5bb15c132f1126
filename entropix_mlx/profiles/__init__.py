"""Profiles: the numbers that policies use, in TOML files, and the table of policies; no MLX."""
