"""`entropix convert`: write a model as a folder that this program and mlx-lm load."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ..errors import SettingsError
from ..files import expanded
from .shared import output
from .shared.options import command


@command()
def convert(
    *,
    source: Annotated[str, Parameter(name=["--model", "--hf-path"])],
    out: Annotated[Path, Parameter(name=["--output", "-o", "--mlx-path"])] = Path("mlx_model"),
    quantize: Annotated[bool, Parameter(name=["--quantize", "-q"])] = False,
    dequantize: Annotated[bool, Parameter(name=["--dequantize", "-d"])] = False,
    q_bits: Literal[2, 3, 4, 5, 6, 8] | None = None,
    q_group_size: Literal[32, 64, 128] | None = None,
    dtype: Literal["float16", "bfloat16", "float32"] | None = None,
) -> int:
    """Write a model as a folder that mlx-lm loads, too.

    Args:
        source: Hugging Face folder, .gguf file, or hub id
        out: folder to write
        quantize: quantize the weights
        dequantize: unpack quantized weights
        q_bits: bits per weight (default: 4)
        q_group_size: weights that share a scale (default: 64)
        dtype: type of weights that are not quantized (default: as is)
    """
    if quantize and dequantize:
        raise SettingsError("--quantize and --dequantize are opposites: leave one out")
    if not quantize and (q_bits or q_group_size):
        raise SettingsError("--q-bits and --q-group-size need --quantize: add it")
    from ..checkpoints.convert import convert

    # As Ctrl-C does, SIGTERM raises KeyboardInterrupt, so that nothing half-written stays.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        written = convert(
            source,
            expanded(out, SettingsError),
            bits=(q_bits or 4) if quantize else None,
            group_size=q_group_size or 64,
            dtype=dtype,
            dequantize=dequantize,
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    output.write(f"{written}\n")
    return 0
