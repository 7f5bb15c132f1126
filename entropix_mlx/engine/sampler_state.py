"""What a sampler with a memory remembers of one answer: of its text, and of its rollouts.

A state belongs to a place of a text. It is kept where a position was received, and from there the
token that joins the text leads to the next one. So nothing has to be undone: a guess that was wrong
is dropped with its state, a text that is shortened goes on from the state that was kept there, and
a side text leaves the states as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.requests import DRAWN, Follow, Roll
from ..errors import SamplerError
from ..samplers.base import Sampler
from ..samplers.metrics.logits import numbers
from ..samplers.state import (
    Memory,
    State,
    TextStart,
    joined,
    rows_of,
)
from ..step import Step
from .forward import Pass

BREAKERS = ("\n", ":", '"', "*")
"""Texts over which no repetition extends: the default of DRY's implementations."""


class _Kept(NamedTuple):
    """The state of one text: a row of a state that may have others."""

    state: State
    row: int


class Remembering:
    """The states of one answer: those of its text and, at a branch point, of each rollout."""

    def __init__(self, memory: Memory, state: State) -> None:
        """Begin.

        Args:
            memory: the sampler's.
            state: what is remembered before the answer's next position.
        """
        self._memory = memory
        self._text = _Kept(state, 0)
        self._branches: list[list[_Kept]] = []
        """Of each rollout, the state at the branch point, and after each of its tokens."""

    def wanted(self, want: Follow | Roll, members: Sequence[int]) -> State:
        """Return the states in which the positions after wanted tokens are planned.

        Args:
            want: the text's or the rollouts' next tokens.
            members: the rollouts, or the text, for which to return them.
        """
        state = self._states(members)
        if isinstance(want, Follow):
            tokens, logprobs = [want.token], [want.logprob]
        else:
            rows = [want.branches.index(member) for member in members]
            tokens = [want.tokens[row] for row in rows]
            logprobs = [want.logprobs[row] if want.logprobs else None for row in rows]
        if None in logprobs:  # a side text's, or the last token of the prompt, which is known
            return state
        return self._memory.observe(state, mx.array(tokens), mx.array(logprobs))

    def guessed(
        self, want: Follow | Roll, members: Sequence[int], last: Pass, places: Sequence[int]
    ) -> State:
        """Return the states in which the positions after guessed tokens are planned.

        Args:
            want: what the guess is to follow.
            members: see `wanted`.
            last: the pass that serves it.
            places: where the members are among the rows of that pass.
        """
        if want.side:
            return self._states(members)
        tokens = last.drawn(places) if want.then == DRAWN else mx.full(len(places), want.then)
        logprobs = last.logprobs(places, None if want.then == DRAWN else tokens)
        return self._memory.observe(last.noted(places), tokens, logprobs)

    def received(self, want: Follow | Roll, last: Pass, places: dict[int, int]) -> None:
        """Keep what was noted at the positions that followed a want.

        Args:
            want: the want.
            last: the pass that served it.
            places: where the text, or each rollout, is among the rows of the pass.
        """
        if want.side:
            return
        state = last.noted(list(places.values()))
        for row, member in enumerate(places):
            if isinstance(want, Follow):
                self._text = _Kept(state, row)
            else:
                self._branches[member].append(_Kept(state, row))

    def split(self, branches: int) -> None:
        """Begin rollouts at the place of the text."""
        self._branches = [[self._text] for _ in range(branches)]

    def keep(self, branch: int, length: int) -> None:
        """Go on after the first tokens of a rollout, and forget the others."""
        self._text = self._branches[branch][length]
        self._branches = []

    def _states(self, members: Sequence[int]) -> State:
        """Return what was kept last of rollouts, or of the text, as one state."""
        if not self._branches:
            kept = [self._text]
        else:
            kept = [self._branches[member][-1] for member in members]
        first = kept[0].state
        if all(one.state is first for one in kept):
            return rows_of(first, [one.row for one in kept])
        return joined([rows_of(one.state, [one.row]) for one in kept])


def remembering(
    sampler: Sampler,
    tokenizer: TokenizerWrapper,
    vocab: int,
    prompt: Sequence[int],
    answered: Sequence[Step],
) -> Remembering | None:
    """Return what a sampler remembers before an answer goes on; None if it has no memory.

    Args: as for `first_state`.
    """
    memory = sampler.remembered
    if memory is None:
        return None
    return Remembering(memory, first_state(sampler, tokenizer, vocab, prompt, answered))


def first_state(
    sampler: Sampler,
    tokenizer: TokenizerWrapper,
    vocab: int,
    prompt: Sequence[int],
    answered: Sequence[Step] = (),
) -> State:
    """Return the state before a text goes on; () if the sampler has no memory.

    Of an answer that is taken up again, the tokens are observed once more with the log
    probabilities that were recorded. What was noted besides is not known any more.

    Args:
        sampler: that of the answer.
        tokenizer: from `load`.
        vocab: the number of tokens of the model.
        prompt: the tokens before the answer.
        answered: its steps so far.
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
