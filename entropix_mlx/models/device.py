"""What is chosen by the device that computes, each choice with its reason.

Nothing else asks which device it is. What depends on a model's size as well stands with the model:
`llama/weight_layout.py` (whether unpacked weights fit) and `memory.py` (how many texts do).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import mlx.core as mx

Costs = Sequence[tuple[int, float]]
"""Numbers of proposed tokens, and the time of a pass with each, relative to a pass without."""
CAREFUL: Costs = ((2, 2.1), (4, 3.3), (8, 4.8))
"""Measured with the reference BLAS, which does not batch. Used for GPUs, too, where nothing was
measured: a pass there reads the weights once, so that longer ones should cost less than here."""
ONE_BY_ONE: Costs = ((2, 2.5), (4, 3.8), (8, 6.4))
"""Measured with the reference BLAS and models that mlx-lm computes. Used for mixtures of experts
everywhere: there each token may read weights of its own."""
BATCHED: Costs = ((1, 1.2), (3, 1.4), (7, 1.6), (15, 2.0))
"""Measured with OpenBLAS. It multiplies 2, 4, 8 and 16 rows best: three take longer than four."""


def on_cpu() -> bool:
    return bool(mx.default_device() == mx.cpu)


def prefill_chunk() -> int:
    """Return how many tokens of a prompt are computed at once while nothing else waits.

    An answer can be cancelled between two chunks. On a CPU, 256 tokens of a small model take about
    a second; a GPU needs mlx-lm's 2,048 to be busy, and is through with them as soon.
    """
    return 256 if on_cpu() else 2048


def computes_in_float32() -> bool:
    """Return whether weights become float32: MLX's CPU backend is 40 times slower with half
    precision."""
    return on_cpu()


def unpacks_weights() -> bool:
    """Return whether quantized weights become dense ones where memory allows it.

    MLX's CPU backend is slow with packed weights. A GPU decodes as fast as it reads weights, so
    that packed ones are the faster ones.
    """
    return on_cpu()


def orders_weights_by_input() -> bool:
    """Return whether dense weights lie in memory input by input, which suits a BLAS on the CPU."""
    return on_cpu()


def compiles() -> bool:
    """Return whether positions are compiled: on a GPU, and where ``ENTROPIX_COMPILE`` is 1.

    A GPU spends microseconds on starting a kernel, however little it computes. On the CPU, MLX
    needs a C++ compiler and a second for each kernel.
    """
    return not on_cpu() or os.environ.get("ENTROPIX_COMPILE") == "1"


def recommended_memory() -> int | None:
    """Return the bytes that Metal recommends to use, and to keep wired, at most; None elsewhere."""
    limit = mx.device_info().get("max_recommended_working_set_size")
    return None if limit is None else int(limit)


def proposes_by_default(packed: bool) -> bool:
    """Return whether tokens are proposed without being asked for.

    Where MLX computes with quantized weights on a CPU, nobody has measured a pass of several
    tokens.
    """
    return not (packed and on_cpu())


def pass_costs(*, mixes_experts: bool, own_port: bool) -> Costs:
    """Return what passes of several tokens cost with a mixture of experts, or a model that our own
    port computes."""
    batches = not on_cpu() or blas_batches()
    if mixes_experts or not (batches or own_port):
        return ONE_BY_ONE
    return BATCHED if on_cpu() and batches else CAREFUL


@lru_cache(maxsize=1)
def blas_batches() -> bool:
    """Return whether the CPU backend multiplies several rows faster together than one by one.

    macOS has Accelerate. On Linux, MLX's wheel comes with the reference BLAS, which does not batch;
    any other BLAS shows among the libraries that this process has loaded. (NumPy and SciPy bring an
    OpenBLAS of their own, which MLX does not use.)
    """
    if sys.platform != "linux":
        return True
    try:
        loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    libraries = [line for line in loaded.splitlines() if not re.search("numpy|scipy", line)]
    return any(re.search("openblas|libmkl|libblis", line) for line in libraries)
