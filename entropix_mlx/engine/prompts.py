"""Prompts: what is cached of them, and reading the rest in chunks."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache, LRUPromptCache

from ..models import caches
from ..models.base import LanguageModel
from ..samplers.metrics import most_probable, numbers

LOGITS_AT_ONCE = 2**22  # in memory, where all positions of a text are measured
MOST_TEXTS = 10_000
NO_TOKEN = -1  # stands for the last token of a prompt: no text that holds all of it is found


class PromptCache:
    """Caches of texts, for prompts that begin as they do; those used longest ago leave first. It
    belongs on the model's thread, as all arrays do."""

    def __init__(self, most_bytes: int) -> None:
        self._texts = LRUPromptCache(MOST_TEXTS, most_bytes)

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def nbytes(self) -> int:
        return int(self._texts.nbytes)

    def fetch(self, prompt: Tokens[int]) -> tuple[list[Any] | None, int]:
        """Return the cache of the longest known beginning of a prompt, and its length; the last
        token is left out, since its logits are needed."""
        found, rest = self._texts.fetch_nearest_cache("", [*prompt[:-1], NO_TOKEN])
        return (None, 0) if found is None else (found, len(prompt) - len(rest))

    def insert(self, tokens: Tokens[int], cache: list[Any]) -> None:
        """Keep the cache of a text, without what it has reserved beyond."""
        if tokens:
            stored = [_without_reserve(layer) for layer in caches.copy(cache)]
            self._texts.insert_cache("", list(tokens), stored)

    def limit(self, most_bytes: int) -> None:
        """Keep so many bytes from now on."""
        self._texts.max_bytes = most_bytes
        self._texts.trim_to(n_bytes=most_bytes)

    def clear(self) -> None:
        self._texts.trim_to(n_sequences=0)


def _without_reserve(layer: Any) -> Any:
    if type(layer) is KVCache and layer.keys is not None and layer.keys.shape[2] > layer.offset:
        layer.keys = mx.contiguous(layer.keys[..., : layer.offset, :])
        layer.values = mx.contiguous(layer.values[..., : layer.offset, :])
    return layer


class Likelihood(NamedTuple):
    """How well a given token was predicted by those before it."""

    logprob: float  # natural, at temperature 1
    rank: int  # 1 where no token was more probable
    listed: tuple[tuple[int, float], ...] = ()  # the most probable tokens and their log p


def read_prompt(model: LanguageModel, tokens: Tokens[int], cache: list[Any]) -> None:
    """Put tokens into the cache of a sequence, and wait until they are there."""
    model(mx.array([list(tokens)]), cache, measure=False)
    mx.eval(caches.arrays(cache))
    mx.clear_cache()


def read_likelihoods(
    model: LanguageModel, tokens: Tokens[int], cache: list[Any], listed: int
) -> list[Likelihood]:
    """Read all but the last token; return how well each one but the first was predicted."""
    found: list[Likelihood] = []
    size = max(1, LOGITS_AT_ONCE // model.config.vocab_size)
    for begin in range(0, len(tokens) - 1, size):
        end = min(begin + size, len(tokens) - 1)
        forward = model(mx.array([list(tokens[begin:end])]), cache, measure=False)
        following = mx.array(list(tokens[begin + 1 : end + 1]))
        found += _likelihoods(forward.logits[0].astype(mx.float32), following, listed)
    return found


def _likelihoods(logits: mx.array, following: mx.array, listed: int) -> list[Likelihood]:
    """Return how well `(n, vocab)` logits predict the `(n,)` tokens that follow."""
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    own = mx.take_along_axis(logprobs, following[:, None], axis=-1)[:, 0]
    rank = 1 + (logprobs > own[:, None]).sum(axis=-1)
    best: list[tuple[tuple[int, float], ...]] = [()] * len(following)
    if listed:
        tokens, gaps = map(numbers, most_probable(-logprobs, listed))
        best = [
            tuple((token, -gap) for token, gap in zip(*row, strict=True))
            for row in zip(tokens, gaps, strict=True)
        ]
    return list(map(Likelihood, numbers(own), numbers(rank), best))
