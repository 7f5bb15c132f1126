"""The configuration file: defaults of options, the theme, keys."""
