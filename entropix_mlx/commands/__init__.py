"""The subcommands: one file each, and what they share. None imports MLX before it runs."""

USAGE, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
"""Exit codes: a mistake that the user can mend, an interrupt, nobody reads the output any more."""
