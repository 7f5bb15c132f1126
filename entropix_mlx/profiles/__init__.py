"""Built-in profiles, as TOML data files."""
