"""What a sampler is and what it hands to the draw: the terms that all samplers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mlx.core as mx

from ..profiles.profile import Profile
from ..profiles.sections import ForkRule, PositionScore, Think
from ..step import Decision, Metrics, Strategy
from .metrics.logits import Measured, numbers
from .state import Both, Memory, State, Window

STRATEGIES = tuple(Strategy)
"""On the device, a strategy is its index here."""
CODE = {strategy: code for code, strategy in enumerate(STRATEGIES)}

TOP_K_OFF = 0


class Plan(NamedTuple):
    """How to draw at one position of each sequence: `(batch,)` arrays."""

    strategy: mx.array
    """Index into `STRATEGIES`."""
    temperature: mx.array
    top_p: mx.array
    top_k: mx.array
    """`TOP_K_OFF` where there is none; any other number is rounded down."""
    min_p: mx.array

    def decisions(self, metrics: Metrics[mx.array]) -> list[Decision]:
        """Return the plans and metrics of a batch as Python numbers."""
        plans = zip(*(numbers(array) for array in self), strict=True)
        measurements = zip(*(numbers(array) for array in metrics), strict=True)
        return [
            Decision(STRATEGIES[int(code)], temperature, top_p, int(top_k), min_p, Metrics(*values))
            for (code, temperature, top_p, top_k, min_p), values in zip(
                plans, measurements, strict=True
            )
        ]


class Planned(NamedTuple):
    """A plan, with what only some samplers add to it."""

    plan: Plan
    gaps: mx.array | None = None
    """`(batch, vocab)`: what is drawn from in place of the distribution that was measured, as gaps
    of which the smallest is 0. Metrics and log probabilities stay those of the model."""
    state: State | None = None
    """The state with the position observed; None for the state that the plan was made with."""


PlanFunction = Callable[..., Plan | Planned]
"""Called with what was measured and, where the sampler has a memory, its state."""


@dataclass(frozen=True)
class Planner:
    """A plan function as a rule and its numbers, which profiles do not share.

    The rule is compiled with its numbers as inputs, so that another threshold compiles nothing.
    """

    rule: PlanFunction
    """A function of a module, the same object for every profile. It gets what was measured, the
    numbers and, where the sampler has a memory, its state."""
    numbers: Any
    """What the rule computes with: an array, or a tuple or dictionary of arrays."""

    def __call__(self, measured: Measured, *state: State) -> Plan | Planned:
        """Plan, as `Sampler.plan` does."""
        return self.rule(measured, self.numbers, *state)


Number = float | mx.array
"""A number of the host, or an array that holds one."""


def constant_plan(
    measured: Measured,
    strategy: Strategy,
    temperature: Number = 1.0,
    top_p: Number = 1.0,
    top_k: Number = TOP_K_OFF,
    min_p: Number = 0.0,
) -> Plan:
    """Return the same plan for each sequence of a batch."""
    values = (CODE[strategy], temperature, top_p, top_k, min_p)
    arrays = (v if isinstance(v, mx.array) else mx.array(float(v)) for v in values)
    return Plan(*(mx.broadcast_to(array, measured.gaps.shape[:1]) for array in arrays))


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """A way of choosing tokens: how to plan a position, and what its plans may ask of the draw.

    The module of a sampler has a function `build(name, profile, given)`, which returns one. It gets
    the sampler's name, the profile (with the options of its own in ``profile.samplers[name]``) and
    the sampling parameters that the user gave, which are checked by then.
    """

    name: str
    profile: Profile
    """Where its numbers come from."""
    plan: PlanFunction
    """It knows nothing of interventions: where no thinking text may be inserted, the host calls the
    strategy `think` by another name."""
    own_fork_rule: ForkRule | None = None
    """Its own rule for forks, in place of the profile's."""
    max_top_k: int | None = None
    """The largest top-k that a plan can hold; None where plans set none."""
    needs_order: bool = False
    """Whether the draw needs tokens in order of probability, as any top-k or top-p does."""
    draws: int = 1
    """Tokens drawn for the strategy `adaptive`, which keeps the best; 0 if it never draws."""
    excludes_top: bool = False
    """Whether the strategy `resample` may not draw the most probable token."""
    memory: Memory | None = None
    """The state that `plan` gets; None where a plan depends on its position alone."""
    adjustment: Mapping[str, mx.array] = field(default_factory=dict)
    """The numbers by which the logits of the draw are changed; see `logit_processors.py`."""
    takes_chance: bool = False
    """Whether its plans are partly left to chance: then `draws` is 2, and the second of the
    position's random numbers is `Measured.chance`."""

    @property
    def think(self) -> Think:
        """The text to insert where the strategy is `think`."""
        return self.profile.think

    @property
    def fork_rule(self) -> ForkRule:
        """Where forks are, and how they are compared."""
        return self.own_fork_rule or self.profile.branch

    @property
    def position_score(self) -> PositionScore:
        """The weights of the score that a step states."""
        return self.profile.position_score

    def planned(self, measured: Measured, state: State = ()) -> Planned:
        """Return what `plan` does, in one form for all samplers."""
        return as_planned(self.plan(measured, state) if self.memory else self.plan(measured))

    @property
    def remembered(self) -> Memory | None:
        """The whole memory: that of the adjustment, then that of `plan`."""
        if not self.adjustment:
            return self.memory
        return Window() if self.memory is None else Both(Window(), self.memory)


def as_planned(plan: Plan | Planned) -> Planned:
    """Return a plan with nothing added, unless something is."""
    return plan if isinstance(plan, Planned) else Planned(plan)
