"""Several ranks: processes that compute one model together, as ``mlx.launch`` starts them.

Every rank runs the same program on the same input with the same seed, and so decides the same.
mlx-lm's ``shard`` gives each rank some heads and a part of each feed-forward network. Only rank 0
prints. What it alone knows, such as a request or a time, is shared before it decides anything.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn

from ..errors import UnsupportedModelError, first_line

Value = TypeVar("Value")


@lru_cache(maxsize=1)
def launched() -> mx.distributed.Group | None:
    """Return the group of this process, or None where it is alone; ranks wait for one another."""
    group = mx.distributed.init()
    return group if group.size() > 1 else None


def share(value: Value, group: mx.distributed.Group | None) -> Value:
    """Return rank 0's value on every rank, all of which must call this."""
    if group is None:
        return value
    first = group.rank() == 0
    data = mx.array(list(pickle.dumps(value)) if first else [0], mx.uint8)
    [size] = _numbers(mx.distributed.all_sum(mx.array([data.size if first else 0]), group=group))
    sent = data if first else mx.zeros((size,), mx.uint8)
    shared = mx.distributed.all_sum(sent, group=group)
    received: Value = pickle.loads(bytes(_numbers(shared)))  # the other ranks are this program
    return value if first else received


def least(number: int, group: mx.distributed.Group | None) -> int:
    """Return the smallest of the numbers of all ranks."""
    if group is None:
        return number
    return _numbers(mx.distributed.all_min(mx.array([number]), group=group))[0]


def _numbers(array: mx.array) -> list[int]:
    numbers: list[int] = array.tolist()  # type: ignore[assignment]
    return numbers


def split(model: nn.Module, config: Mapping[str, Any], group: mx.distributed.Group) -> None:
    """Leave this rank's part of a model, whose weights may be lazy. Raises `UnsupportedModelError`
    if mlx-lm cannot split it, or its heads not among so many ranks."""
    kind, ranks = config.get("model_type"), group.size()
    if not hasattr(model, "shard"):
        raise UnsupportedModelError(f"mlx-lm cannot split this {kind} over several ranks")
    stated = {**config, **(config.get("text_config") or {})}
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = stated.get(name)
        if isinstance(heads, int) and heads % ranks:
            raise UnsupportedModelError(
                f"this {kind} cannot be split over {ranks} ranks: {name} is {heads}, which {ranks}"
                " does not divide"
            )
    try:
        model.shard(group)
    except ValueError as error:
        raise UnsupportedModelError(
            f"this {kind} cannot be split over {ranks} ranks: {first_line(error)}"
        ) from error


def gather_heads(scores: mx.array, group: mx.distributed.Group) -> mx.array:
    """Return attention scores `(B, queries, heads, keys)` with the heads of all ranks."""
    by_head = mx.contiguous(mx.moveaxis(scores, 2, 0))
    return mx.moveaxis(mx.distributed.all_gather(by_head, group=group), 0, 2)
