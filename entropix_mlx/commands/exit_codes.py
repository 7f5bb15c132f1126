"""Exit codes of the command line."""

USAGE = 2
"""A mistake that the user can mend."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""Nobody reads the output any more."""
