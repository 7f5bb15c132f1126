"""What depends on the device that computes, and its memory: nothing else asks which it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model

from .ranks import least

if TYPE_CHECKING:
    from .base import LanguageModel

UNPACKED_SHARE = 0.5  # of the machine's memory that unpacked weights take without being asked for
CACHE_SHARE = 0.5  # of the memory beside the weights that caches may take
CLEAR_EVERY = 256  # passes between two releases of MLX's unused buffers


def on_cpu() -> bool:
    return bool(mx.default_device() == mx.cpu)


def prefill_chunk() -> int:
    """Return how many tokens of a prompt are computed at once while nothing else waits.

    On a CPU, 256 tokens of a small model take about a second; a GPU needs 2,048 to be busy.
    """
    return 256 if on_cpu() else 2048


def compiles() -> bool:
    """Return whether positions are compiled: on a GPU, which spends microseconds on starting a
    kernel, and where ``ENTROPIX_COMPILE`` is 1. A CPU needs a C++ compiler and a second a kernel.
    """
    return not on_cpu() or os.environ.get("ENTROPIX_COMPILE") == "1"


def compute_in_float32(model: nn.Module, unpack: bool | None = None) -> None:
    """Turn the weights of a model, which may be lazy, into float32, if a CPU computes it.

    MLX's CPU backend is 40 times slower with half precision, and slow with packed weights. These
    become dense if `unpack` says so, by default where half of the machine's memory holds them.
    """
    if not on_cpu():
        return
    model.set_dtype(mx.float32)
    if unpack is None:
        unpack = _dense_bytes(model) <= UNPACKED_SHARE * machine_memory()
    if unpack:
        dequantize_model(model)


def read_weights(model: nn.Module) -> None:
    """Read the lazy weights of a model; on a CPU, store them in the order of their inputs.

    Memory never holds two versions of more than one layer.
    """
    if on_cpu():
        leaves: dict[str, nn.Module] = dict(
            tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module)
        )
        # The largest first: while the embedding is in memory twice, hardly anything else is.
        for layer in sorted(leaves.values(), key=_dense_bytes, reverse=True):
            if isinstance(layer, _BY_INPUT):
                layer.weight = _by_input(layer.weight)
            mx.eval(layer.parameters())
    mx.eval(model.parameters(), mx.random.state)  # new layers drew weights that nobody computes
    mx.clear_cache()


_BY_INPUT = (nn.Linear, nn.Embedding, nn.AllToShardedLinear, nn.ShardedToAllLinear)


def _by_input(weight: mx.array) -> mx.array:
    """Return a weight `(outputs, inputs)` that lies in memory input by input.

    Stored output by output, as in a checkpoint, ``x @ weight.T`` is one dot product an output, and
    the reference BLAS of the mlx[cpu] wheel sums it term after term. Stored input by input, an
    input's products are added to all outputs at once: half the time; 5 to 10 % less with OpenBLAS.
    """
    return mx.contiguous(weight.T).T


def _dense_bytes(model: nn.Module) -> int:
    """Return what the weights take as float32; 3, 5 and 6 bits do not divide a word of 32."""
    return sum(
        (part.weight.size * 32 // part.bits if "scales" in part else part.weight.size) * 4
        for part in model.modules()
        if "weight" in part
    )


def recommended_memory() -> int | None:
    """Return the bytes that Metal recommends to use, and to keep wired, at most; None elsewhere."""
    limit = mx.device_info().get("max_recommended_working_set_size")
    return None if limit is None else int(limit)


def wire_memory() -> None:
    """Let Metal keep as much memory wired as it recommends: weights stay there between answers."""
    if (limit := recommended_memory()) is not None:
        mx.set_wired_limit(limit)


def usable_memory() -> int:
    limit = recommended_memory()
    return machine_memory() if limit is None else limit


def machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cache_tokens(model: LanguageModel) -> int:
    """Return how many tokens caches may hold beside what is in memory now, on every rank. A prompt
    with more must be refused: Metal aborts a process that runs out of memory."""
    free = (usable_memory() - mx.get_active_memory()) * CACHE_SHARE
    return least(max(0, int(free // max(1, model.cache_bytes_per_token))), model.group)
