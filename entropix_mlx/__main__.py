"""``python -m entropix_mlx`` is `entropix`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
