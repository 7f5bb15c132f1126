"""``python -m entropix_mlx`` is `entropix`."""

from __future__ import annotations

import atexit
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        if sys.argv[1:2] == ["chat"] and "--plain" not in sys.argv:
            from .tui.terminal import all_keys

            atexit.register(all_keys())  # Ctrl+Q leaves also while modules are imported
        from .cli import main as run

        return run()
    except KeyboardInterrupt:  # while modules are imported
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
