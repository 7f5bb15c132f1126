"""What a sampler is and what it hands to the draw: the terms that all samplers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

from ..profiles.profile import Profile
from ..step import Strategy
from .logit_processors import Penalties
from .metrics import Measured

# On the device, a strategy is its index here; those that may take the likeliest token come first.
STRATEGIES = tuple(dict.fromkeys((Strategy.ARGMAX, Strategy.BRANCH, *Strategy)))
CODE = {strategy: code for code, strategy in enumerate(STRATEGIES)}

TOP_K_OFF = 0


class Plan(NamedTuple):
    """How to draw at one position of each row: `(rows,)` arrays."""

    strategy: mx.array  # index into `STRATEGIES`
    temperature: mx.array
    top_p: mx.array
    top_k: mx.array  # `TOP_K_OFF` where there is none; any other number is rounded down
    min_p: mx.array
    drawn_from: mx.array | None = None
    """Gaps `(rows, vocab)` to draw from in place of `Measured.drawn_from`, the smallest of them 0.
    Metrics and log probabilities stay those of the model."""

    @property
    def parameters(self) -> tuple[mx.array, ...]:
        """The strategy, temperature, top-p, top-k and min-p."""
        return self[:5]


PARAMETERS = 5  # how many there are
Rule = Callable[..., Plan]
"""Plans a position from what was measured and the sampler's numbers: a function of a module. Where
no thinking text may be inserted, the host calls the strategy `think` by another name."""


class Drawing(NamedTuple):
    """What the plans of a sampler may ask of the draw."""

    max_top_k: int | None = None  # the largest top-k of a plan; None where plans set none
    needs_order: bool = False  # any top-k or top-p needs tokens in order of probability
    draws: int = 1  # for the strategy `adaptive`, which keeps the best token; 0: none is ever drawn
    surest: Strategy = Strategy.ARGMAX  # up to it in `STRATEGIES`, the most probable token is taken
    takes_chance: bool = False  # plans use `Measured.chance`, the second of 2 `draws`


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampler:
    """A way of choosing tokens.

    The module of a sampler has a function `build(name, profile, given)`, which returns one; `given`
    are the sampling parameters that the user gave, checked by then.
    """

    name: str
    profile: Profile
    rule: Rule
    numbers: Any = ()
    """Arrays that the rule computes with: inputs, so that another threshold compiles nothing."""
    drawing: Drawing = Drawing()
    penalties: Penalties | None = None  # what changes the logits that are drawn from

    @property
    def draws(self) -> int:
        return self.drawing.draws


Number = float | mx.array  # a number of the host, or an array that holds one


def constant_plan(
    measured: Measured,
    strategy: Strategy,
    temperature: Number = 1.0,
    top_p: Number = 1.0,
    top_k: Number = TOP_K_OFF,
    min_p: Number = 0.0,
) -> Plan:
    values = (CODE[strategy], temperature, top_p, top_k, min_p)
    arrays = (v if isinstance(v, mx.array) else mx.array(float(v)) for v in values)
    return Plan(*(mx.broadcast_to(array, measured.values.shape[:1]) for array in arrays))
