"""What a conversion does to weights."""

from __future__ import annotations

from dataclasses import dataclass

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Recipe:
    """What to do with weights; by default, nothing."""

    bits: int | None = None
    """Quantize to this many (of `BITS`) a weight; None leaves weights as they are."""
    group_size: int = 64
    """Weights that share a scale (of `GROUP_SIZES`), where `bits` are given."""
    dtype: str | None = None
    """The type of all floating-point numbers (of `DTYPES`); None leaves each as it is."""
    dequantize: bool = False
    """Whether to unpack quantized weights."""

    @property
    def exact(self) -> bool:
        """Whether every number stays what it was; all others are float32 numbers too."""
        return self.bits is None and not self.dequantize and self.dtype in (None, "float32")
