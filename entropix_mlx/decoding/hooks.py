"""What a caller of the decode core may be told, and may say, while an answer is generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

from ..step import Branch

Choose = Callable[[Branch], int]
"""Asked for the index of a rollout; `winner` is the one that would be taken unasked."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks of one answer, all of them optional."""

    cancel: Event | None = None
    """Set it, from any thread, to stop before the next token."""
    on_prefill: Callable[[int, int], None] | None = None
    """Called with the prompt tokens processed so far and their number."""
    choose: Choose | None = None
    """Called where the two best rollouts of a fork score alike; without it, the best is taken."""
    on_rollouts: Callable[[int, Sequence[Sequence[int]]], None] | None = None
    """Called while rollouts grow: the index of the branch point in the answer, and the token ids of
    each rollout so far."""

    def cancelled(self) -> bool:
        """Tell whether the answer is to stop."""
        return self.cancel is not None and self.cancel.is_set()
