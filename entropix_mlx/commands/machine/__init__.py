"""Subcommands about this machine: its models, and what may stand in their way."""
