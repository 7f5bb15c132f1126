"""``python -m entropix_mlx`` is `entropix`."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:  # while modules are imported
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
