"""``python -m tui`` is ``entropix chat``."""

import sys

from entropix_mlx.cli import main

if __name__ == "__main__":
    sys.exit(main(["chat", *sys.argv[1:]]))
