"""Convert weights to a folder that entropix_mlx and mlx-lm load: the same as `entropix convert`."""

import sys

from entropix_mlx.cli import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
