"""The subcommands: one file each, and what they share. None imports MLX before it runs."""
