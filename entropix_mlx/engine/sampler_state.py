"""The states of samplers that remember the text: of one answer, and of its branches.

A state belongs to a place of a text. It is stored where a position was received; from there the
token that joins the text leads to the next one:

    place     prompt    The      sky      is
    state       s0  ──→  s1  ──→  s2  ──→  s3        observe(state, token, log p)

States are never changed in place, so nothing has to be undone: an unconfirmed token is dropped with
its state, and each branch of a fork goes on from the state of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.requests import DRAWN, Advance
from ..errors import SamplerError
from ..samplers.base import Memory, Sampler, State, TextStart, joined, rows_of
from ..samplers.metrics.logits import numbers
from ..step import Step
from .forward import Pass

BREAKERS = ("\n", ":", '"', "*")
"""Texts over which no repetition extends: the default of DRY's implementations."""


class _RowState(NamedTuple):
    """The state of one text: a row of a state that may have others."""

    state: State
    row: int


class SamplerStates:
    """The states of one answer: that of its text and, at a fork, of each branch."""

    def __init__(self, memory: Memory, state: State) -> None:
        self._memory = memory
        self._text = _RowState(state, 0)
        self._branches: list[list[_RowState]] = []
        """Of each branch, the state at the fork, and after each of its tokens."""

    def after(self, request: Advance, members: Sequence[int]) -> State:
        state = self._of(members)
        if not request.logprobs:  # the last token of the prompt, which is part of the state
            return state
        logprobs = dict(zip(request.tokens, request.logprobs, strict=True))
        tokens = mx.array([request.tokens[member] for member in members])
        return self._memory.observe(state, tokens, mx.array([logprobs[m] for m in members]))

    def ahead(self, then: int, last: Pass, places: Sequence[int]) -> State:
        """Return the states after expected tokens, of rows of the pass that they follow."""
        tokens = last.drawn(places) if then == DRAWN else mx.full(len(places), then)
        logprobs = last.logprobs(places, None if then == DRAWN else tokens)
        return self._memory.observe(last.states(places), tokens, logprobs)

    def receive(self, last: Pass, places: dict[int, int]) -> None:
        """Keep the states at positions that were read, given their rows in the pass."""
        state = last.states(list(places.values()))
        for row, member in enumerate(places):
            if self._branches:
                self._branches[member].append(_RowState(state, row))
            else:
                self._text = _RowState(state, row)

    def split(self, branches: int) -> None:
        self._branches = [[self._text] for _ in range(branches)]

    def keep(self, branch: int, length: int) -> None:
        self._text = self._branches[branch][length]
        self._branches = []

    def _of(self, members: Sequence[int]) -> State:
        if self._branches:
            last = [self._branches[member][-1] for member in members]
        else:
            last = [self._text]
        first = last[0].state
        if all(one.state is first for one in last):
            return rows_of(first, [one.row for one in last])
        return joined([rows_of(one.state, [one.row]) for one in last])


def first_state(
    sampler: Sampler,
    tokenizer: TokenizerWrapper,
    vocab: int,
    prompt: Sequence[int],
    answered: Sequence[Step] = (),
) -> State:
    """Return the state before a text goes on; () if the sampler has no memory.

    Of an answer that is resumed, the tokens are observed once more with the log probabilities that
    were recorded. What else a sampler measured is lost.
    """
    memory = sampler.remembered
    if memory is None:
        return ()
    breakers = _breakers(tokenizer) if sampler.adjustment else []
    state = memory.start(TextStart(prompt, vocab, breakers))
    for step in answered:
        state = memory.observe(state, mx.array([step.token]), mx.array([step.logprob]))
    mx.eval(*state)
    return state


def _breakers(tokenizer: TokenizerWrapper) -> list[int]:
    """Return the tokens that end with a breaker, as they are written inside a text."""
    return [tokenizer.encode(f"a{text}", add_special_tokens=False)[-1] for text in BREAKERS]


def check_biased(sampler: Sampler, vocab: int) -> None:
    """Check that a model has the tokens that a sampler's `logit_bias` names.

    Raises:
        SamplerError: it does not.
    """
    biased = sampler.adjustment.get("biased")
    beyond = [] if biased is None else [token for token in numbers(biased) if token >= vocab]
    if beyond:  # MLX writes beyond an array without a word
        raise SamplerError(
            f"logit_bias names token {beyond[0]}, and this model has {vocab} tokens: leave it out"
        )
