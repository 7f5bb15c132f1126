"""Exit codes of the command line."""

BUG = 1
"""What Python itself ends with after a traceback."""
USAGE = 2
"""A mistake that the user can mend."""
LOST = 3
"""Another rank of a group is gone."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""Nobody reads the output any more."""
