"""Convert weights to a folder that entropix_mlx and mlx-lm load: see `entropix_mlx.convert`."""

import argparse
import sys

from entropix_mlx.convert import convert
from entropix_mlx.errors import EntropixError


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hf-path", required=True, help="folder, .gguf file or hub id to convert")
    parser.add_argument("--mlx-path", required=True, help="folder to write")
    parser.add_argument("--dequantize", action="store_true", help="unpack quantized weights")
    arguments = parser.parse_args()
    try:
        folder = convert(arguments.hf_path, arguments.mlx_path, dequantize=arguments.dequantize)
    except EntropixError as error:
        print(f"convert_weights: {error}", file=sys.stderr)
        return 2
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
