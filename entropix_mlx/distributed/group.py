"""The ranks that compute one model together, over MLX's own distribution.

A collective is an operation that every rank takes part in. All ranks must ask for the same ones in
the same order, and what they get has the same bits on every rank.

The order is ensured in one of two ways. In a script, every rank runs the same lines with the same
seeds. Under the command line, rank 0 is the *coordinator*: it alone runs the command, and orders
each pass from the others (`models/sharded/coordinator.py`), so that all decisions are on one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from ..errors import WeightsError

Send = Callable[[Mapping[str, Any]], None]
"""Sends an order to the other ranks: a JSON-ready record."""


class Group:
    """The ranks of a model, of which this process is one."""

    def __init__(
        self, group: mx.distributed.Group, *, coordinated: bool = False, send: Send | None = None
    ) -> None:
        """Take a group of MLX's.

        Args:
            group: more than one rank.
            coordinated: whether rank 0 alone decides what is computed.
            send: on rank 0 of a coordinated group.
        """
        self._group = group
        self.rank: int = group.rank()
        self.size: int = group.size()
        self.coordinated = coordinated
        self.send = send

    @classmethod
    def init(cls, *, coordinated: bool = False, send: Send | None = None) -> Group | None:
        """Return the group in which `mlx.launch` started this process; None where it is alone.

        Raises:
            RuntimeError: MLX does not reach the other ranks; the message is its own.
        """
        group = mx.distributed.init()
        return cls(group, coordinated=coordinated, send=send) if group.size() > 1 else None

    def split(self, model: Any) -> None:
        model.shard(self._group)

    def total(self, x: mx.array) -> mx.array:
        """Return the sum over all ranks, of the shape of `x`."""
        return mx.distributed.all_sum(x, group=self._group)

    def gathered(self, x: mx.array) -> mx.array:
        """Return the arrays of all ranks one after the other: `(ranks · n, …)` for `(n, …)`."""
        return mx.distributed.all_gather(x, group=self._group)

    def of_rank_0(self, x: mx.array) -> mx.array:
        """Return rank 0's `x` in a coordinated group; the others know only its shape.

        On all ranks it is computed after `x`.
        """
        if not self.coordinated:
            return x
        return self.total(x if self.rank == 0 else mx.depends(mx.zeros_like(x), x))

    def least(self, number: int) -> int:
        """Return the smallest of the ranks' numbers, waiting for all of them."""
        # As two halves: an int32 does not hold the size of a large memory.
        numbers = self._read(mx.array([divmod(number, 2**30)], dtype=mx.int32))
        return int(min(high * 2**30 + low for high, low in numbers))

    def _read(self, own: mx.array) -> Any:
        return mx.distributed.all_gather(own, group=self._group).tolist()

    def wait(self) -> None:
        """Wait for all ranks to come here.

        A rank that is slower to load would let the GPUs of the others wait for the first sum, and
        Metal ends what waits for seconds.
        """
        self.least(0)

    def check_same(self, digest: str, what: str) -> None:
        """Compare a hash with that of rank 0; all ranks learn the result.

        Args:
            digest: hexadecimal digits, as many on all ranks.
            what: was hashed, for the message.

        Raises:
            WeightsError: it differs on some ranks.
        """
        found = self._read(mx.array([list(bytes.fromhex(digest))], dtype=mx.uint8))
        others = [str(rank) for rank, one in enumerate(found) if one != found[0]]
        if others:
            ranks = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(others)}"
            raise WeightsError(
                f"{what}: {ranks} and rank 0 have different files on their disks: copy rank 0's to"
                " the others"
            )
