"""Log probabilities of given tokens, and nothing else: for those who need no measurements."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..answer.position import Likelihood
from ..engine.cached_text import CachedText
from ..engine.forward import Engine
from ..engine.scheduler import PREFILL_CHUNK
from ..models.base import LanguageModel
from ..samplers.metrics.logits import most_probable, numbers
from .score import LOGITS_AT_ONCE


class Likelihoods:
    """Computes log probabilities; what two texts after one another have in common, only once."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._engine = Engine(model)
        self._text = CachedText.empty(model)

    def of(self, before: Sequence[int], tokens: Sequence[int]) -> list[Likelihood]:
        """Return how well some tokens are predicted after those `before` them, at least one."""
        ids = [*before, *tokens]
        first = len(before) - 1
        begin = self._text.common(ids[:first])
        self._text.shorten(begin)
        for at in range(begin, first, PREFILL_CHUNK):
            self._engine.prefill(self._text, ids[at : min(at + PREFILL_CHUNK, first)])
        found: list[Likelihood] = []
        for at in range(first, len(ids) - 1, PREFILL_CHUNK):
            chunk = ids[at : at + PREFILL_CHUNK + 1]
            found += likelihoods(self._model, self._text, chunk[:-1], chunk[1:])
        return found


def likelihoods(
    model: LanguageModel,
    text: CachedText,
    tokens: Sequence[int],
    following: Sequence[int],
    count: int = 0,
) -> list[Likelihood]:
    """Put tokens into a text's cache, and return how well the one after each is predicted.

    Args:
        model: the text's.
        text: what precedes the tokens; it holds them afterwards, or none of them after an error.
        tokens: at least one.
        following: the token after each of them.
        count: how many of the most probable tokens to list.
    """
    found: list[Likelihood] = []
    block = max(1, LOGITS_AT_ONCE // model.config.vocab_size)
    try:
        states, _ = model.states(mx.array([list(tokens)]), text.layers, "last")
        for begin in range(0, len(tokens), block):
            inside = slice(begin, begin + block)
            logits = model.head(states[:, inside])[0].astype(mx.float32)
            found += _likelihoods_of(logits, mx.array(list(following[inside])), count)
    except BaseException:
        text.take_back()
        raise
    text.confirm(tokens)
    return found


def _likelihoods_of(logits: mx.array, following: mx.array, count: int) -> list[Likelihood]:
    """Return the same for `(n, vocab)` logits and the `(n,)` tokens that follow."""
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    own = mx.take_along_axis(logprobs, following[:, None], axis=-1)[:, 0]
    best = logits.argmax(axis=-1) == following
    listed: list[tuple[tuple[int, float], ...]] = [()] * len(following)
    if count:
        tokens, gaps = map(numbers, most_probable(-logprobs, count))
        listed = [
            tuple((token, -gap) for token, gap in zip(*row, strict=True))
            for row in zip(tokens, gaps, strict=True)
        ]
    return list(map(Likelihood, numbers(own), numbers(best), listed))
