"""How a sampler plans, with its numbers apart from its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .base import Plan, Planned
from .memory import State
from .metrics.logits import Measured


@dataclass(frozen=True)
class Planner:
    """A rule and its numbers: what `Sampler.plan` is where profiles share a compiled function.

    The rule is compiled with its numbers as inputs, so that another threshold compiles nothing.
    """

    rule: Callable[..., Plan | Planned]
    """A function of a module, the same object for every profile. It gets what was measured, the
    numbers and, where the sampler has a memory, its state."""
    numbers: Any
    """What the rule computes with: an array, or a tuple or dictionary of arrays."""

    def __call__(self, measured: Measured, *state: State) -> Plan | Planned:
        """Plan, as `Sampler.plan` does."""
        return self.rule(measured, self.numbers, *state)
