"""What a conversion does to the weights."""

from __future__ import annotations

from dataclasses import dataclass

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Recipe:
    """What to do with the weights; the default changes none of them."""

    bits: int | None = None
    """Quantize to this many bits a weight (one of `BITS`); None does not quantize."""
    group_size: int = 64
    """How many quantized weights share a scale (one of `GROUP_SIZES`); unused without `bits`."""
    dtype: str | None = None
    """Type of all floating-point numbers (one of `DTYPES`); None keeps that of each tensor."""
    dequantize: bool = False
    """Whether to unpack weights that are quantized in the source."""

    @property
    def exact(self) -> bool:
        """Whether no weight changes its value.

        Nothing is quantized or unpacked, and float32 holds any float16 or bfloat16 number exactly.
        """
        return self.bits is None and not self.dequantize and self.dtype in (None, "float32")
