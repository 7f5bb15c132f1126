"""What a sampler is and what it hands to the draw: the terms that all samplers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from ..profiles.profile import Profile
from ..profiles.sections import ForkRule
from ..step import Strategy
from .metrics.logits import Measured

State = tuple[mx.array, ...]  # the first axis is that of the rows

WINDOW = 1024
MOST_BREAKERS = 8
NO_TOKEN = -1


class TextStart(NamedTuple):
    """What is known of a text before its first position."""

    prompt: Sequence[int] = ()
    vocab: int = 0
    breakers: Sequence[int] = ()  # see DRY in `logit_processors.py`


class Memory(Protocol):
    """How the state of a text begins, and how it follows the text.

    A state is never changed in place, only followed by another one: to take a token back is to
    continue from the state before it.

        S₀ = start(text)                     before the first position plan, S′ₜ = plan(measured,
        Sₜ)       with the position observed; where a plan adds nothing, Sₜ Sₜ₊₁ = observe(S′ₜ,
        token, log p)    once a token joins the text: drawn, inserted or forced
    """

    def start(self, text: TextStart) -> State:
        """Return the state before the first position of one text: arrays with one row."""

    def observe(self, state: State, tokens: mx.array, logprobs: mx.array) -> State:
        """Return the state after a token has joined each text.

        Args:
            state: with the position of the token observed.
            tokens: `(rows,)`
            logprobs: `(rows,)`, the tokens' natural log probabilities at temperature 1.
        """


@dataclass(frozen=True)
class Window:
    """The last tokens of a text.

    A state is the tokens `(rows, WINDOW)`, the newest last and `NO_TOKEN` where the text is
    shorter; how many of them are the answer's, `(rows, 1)`; and the breakers `(rows, n)`.
    """

    arrays = 3

    def start(self, text: TextStart) -> State:
        last = list(text.prompt)[-WINDOW:]
        breakers = list(text.breakers)[:MOST_BREAKERS]
        return (
            mx.array([[NO_TOKEN] * (WINDOW - len(last)) + last]),
            mx.array([[0]]),
            mx.array([breakers + [NO_TOKEN] * (MOST_BREAKERS - len(breakers))]),
        )

    def observe(self, state: State, tokens: mx.array, logprobs: mx.array) -> State:
        window, answered, breakers = state
        moved = mx.concatenate([window[:, 1:], tokens.astype(window.dtype)[:, None]], axis=-1)
        return moved, mx.minimum(answered + 1, WINDOW), breakers


@dataclass(frozen=True)
class WindowAnd:
    """A window and another memory: the arrays of both, in this order."""

    other: Memory

    def start(self, text: TextStart) -> State:
        return Window().start(text) + self.other.start(text)

    def observe(self, state: State, tokens: mx.array, logprobs: mx.array) -> State:
        window, others = state[: Window.arrays], state[Window.arrays :]
        return Window().observe(window, tokens, logprobs) + self.other.observe(
            others, tokens, logprobs
        )


def repeated(state: State, rows: int) -> State:
    return tuple(mx.broadcast_to(array, (rows, *array.shape[1:])) for array in state)


def joined(states: Sequence[State]) -> State:
    if len(states) == 1:
        return states[0]
    return tuple(mx.concatenate(list(arrays)) for arrays in zip(*states, strict=True))


def rows_of(state: State, rows: Sequence[int]) -> State:
    if not state or list(rows) == list(range(state[0].shape[0])):
        return state
    index = mx.array(list(rows))
    return tuple(array[index] for array in state)


# On the device, a strategy is its index here. Those that may take the likeliest token come first,
# so that one comparison decides, and no further kernel is needed.
STRATEGIES = tuple(dict.fromkeys((Strategy.ARGMAX, Strategy.BRANCH, *Strategy)))
CODE = {strategy: code for code, strategy in enumerate(STRATEGIES)}

TOP_K_OFF = 0


class Plan(NamedTuple):
    """How to draw at one position of each sequence: `(batch,)` arrays."""

    strategy: mx.array  # index into `STRATEGIES`
    temperature: mx.array
    top_p: mx.array
    top_k: mx.array  # `TOP_K_OFF` where there is none; any other number is rounded down
    min_p: mx.array


class Planned(NamedTuple):
    """A plan, with what only some samplers add to it."""

    plan: Plan
    gaps: mx.array | None = None
    """`(batch, vocab)`: what is drawn from in place of the distribution that was measured, as gaps
    of which the smallest is 0. Metrics and log probabilities stay those of the model."""
    state: State | None = None
    """The state with the position observed; None for the state that the plan was made with."""


Rule = Callable[..., Plan | Planned]
"""Plans a position: a function of a module, the same object for every profile.

It gets what was measured, the sampler's numbers and, where the sampler has a memory, its state. It
knows nothing of interventions: where no thinking text may be inserted, the host calls the strategy
`think` by another name."""


class Drawing(NamedTuple):
    """What the plans of a sampler may ask of the draw."""

    max_top_k: int | None = None  # the largest top-k of a plan; None where plans set none
    needs_order: bool = False  # any top-k or top-p needs tokens in order of probability
    draws: int = 1  # for the strategy `adaptive`, which keeps the best token; 0: none is ever drawn
    surest: Strategy = Strategy.ARGMAX
    """Where ranks matter, strategies up to this one in `STRATEGIES` take the most probable
    token."""
    takes_chance: bool = False
    """Whether plans are partly left to chance: then `draws` is 2, and the second of the position's
    random numbers is `Measured.chance`."""


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """A way of choosing tokens.

    The module of a sampler has a function `build(name, profile, given)`, which returns one. It gets
    the sampler's name, the profile (with the options of its own in ``profile.samplers[name]``) and
    the sampling parameters that the user gave, which are checked by then.
    """

    name: str
    profile: Profile
    rule: Rule
    numbers: Any = ()
    """What the rule computes with: an array, or a tuple or dictionary of arrays. They are inputs of
    the compiled rule, so that another threshold compiles nothing."""
    drawing: Drawing = Drawing()
    own_fork_rule: ForkRule | None = None
    memory: Memory | None = None
    """The state that `rule` gets; None where a plan depends on its position alone."""
    adjustment: Mapping[str, mx.array] = field(default_factory=dict)
    """The numbers by which the logits of the draw are changed; see `logit_processors.py`."""

    @property
    def draws(self) -> int:
        return self.drawing.draws

    @property
    def fork_rule(self) -> ForkRule:
        return self.own_fork_rule or self.profile.branch

    @property
    def remembered(self) -> Memory | None:
        """The whole memory: that of the adjustment, then that of the rule."""
        if not self.adjustment:
            return self.memory
        return Window() if self.memory is None else WindowAnd(self.memory)


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
    return Plan(*(mx.broadcast_to(array, measured.gaps.shape[:1]) for array in arrays))


def as_planned(plan: Plan | Planned) -> Planned:
    return plan if isinstance(plan, Planned) else Planned(plan)
