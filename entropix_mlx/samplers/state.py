"""The state of a sampler with a memory: what it remembers of a text, as arrays on the device.

Each array has one row for each text. A state is never changed in place, only followed by another
one: to take a token back is to continue from the state before it.

    S₀ = start(text)                     before the first position
    plan, S′ₜ = plan(measured, Sₜ)       with the position observed; where a plan adds nothing, Sₜ
    Sₜ₊₁ = observe(S′ₜ, token, log p)    once a token joins the text: drawn, inserted or forced
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import mlx.core as mx

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
    """How the state of a text begins, and how it follows the text."""

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
