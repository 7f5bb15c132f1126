"""What the positions of a text look at, read again: generating the text costs nothing more.

tokens      the   sky   is   blue
weights                 ■■□   ■□□■      (heads, keys) of each query, in every layer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import RotatingKVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.text_stream import TextStream
from ..engine.prompts import PromptCache, read_prompt
from ..engine.sequence import check_tokens
from ..errors import PromptError, UnsupportedModelError
from ..models.base import LanguageModel
from ..models.device import prefill_chunk
from ..step import Attended, AttentionMap
from .score import SCORES_AT_ONCE, check_room

ATTENDED = 16  # tokens of the answer with the largest shares that `attended` keeps for each token


def attention_map(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    answer: Sequence[int] = (),
    known: PromptCache | None = None,
) -> AttentionMap:
    """Return the attention with which the token after a prompt and an answer was predicted.

    The text is read again without that token. Of every layer the attention of its last position is
    returned: `(heads, tokens)`, float32; each head's shares sum to 1 over the tokens of prompt and
    answer. Tokens outside a sliding window have 0. What is `known` of the text is not computed
    again.

    Raises:
        PromptError: there are no tokens, or one that the model does not have.
        ContextLengthError: the text is longer than the context.
        UnsupportedModelError: the model has no attention that can be read.
    """
    tokens = _checked(model, [*prompt, *answer])
    begin = max(0, len(tokens) - 2)  # a sliding window is in order in a pass of several tokens only
    cache = _prefilled(model, tokens[:begin], known)
    scores = model(mx.array([tokens[begin:]]), cache, "all").scores
    layers = tuple(
        _shares(layer[0], len(tokens)) for layer in scores if layer.shape[-1] <= len(tokens)
    )
    if not layers:
        raise _unreadable(model)
    return AttentionMap(tuple(map(TextStream(tokenizer).add, tokens)), len(prompt), layers)


def attention_rows(
    model: LanguageModel, tokens: Sequence[int], first: int
) -> Iterator[list[mx.array]]:
    """Yield the attention weights of the tokens from `first` on, a few tokens at a time.

    There is an array a layer: `(queries, heads, keys)`, which sums to 1 over the keys. They begin
    with the text's first token; those behind a query are 0. Raises `PromptError` or
    `ContextLengthError` as for `attention_map`. Raises `UnsupportedModelError` if the attention
    cannot be read for several tokens at once.
    """
    tokens = _checked(model, tokens)
    _check_rows(model)
    cache = _prefilled(model, tokens[:first])
    while first < len(tokens):
        seen = max(model.attention_heads) * len(tokens)
        end = min(first + max(1, min(prefill_chunk(), SCORES_AT_ONCE // seen)), len(tokens))
        chunk = mx.array([tokens[first:end]])
        scores = model(chunk, cache, "all", queries=end - first).scores
        yield [mx.softmax(layer[0], axis=-1) for layer in scores]
        first = end


def attended(
    model: LanguageModel, prompt: Sequence[int], answer: Sequence[int]
) -> Iterator[Attended]:
    """Yield what each token of an answer looked at when it was predicted. Raises `PromptError`,
    `ContextLengthError` or `UnsupportedModelError` as for `attention_rows`."""
    index = 0
    for weights in attention_rows(model, [*prompt, *answer[:-1]], len(prompt) - 1):
        for row in np.array(sum(each.mean(axis=1) for each in weights) / len(weights)):
            shares = row[len(prompt) : len(prompt) + index]
            largest = np.argsort(-shares, kind="stable")[:ATTENDED]
            seen = [[int(at), round(float(shares[at]), 5)] for at in largest]
            yield Attended(index, round(float(row[: len(prompt)].sum()), 5), seen)
            index += 1


def attention_to(
    model: LanguageModel, prompt: Sequence[int]
) -> Callable[[Sequence[int]], Iterator[Attended]]:
    """Return `attended` for a prompt whose answer is not known yet. Raises `UnsupportedModelError`
    as for `attention_rows`."""
    _check_rows(model)
    return partial(attended, model, prompt)


def _checked(model: LanguageModel, tokens: Sequence[int]) -> list[int]:
    if not tokens:
        raise PromptError("nothing precedes the token: give the prompt that it answers")
    check_tokens(tokens, model.config.vocab_size)
    check_room(0, len(tokens), model.config.max_position_embeddings, split=False)
    return list(tokens)


def _check_rows(model: LanguageModel) -> None:
    """Refuse a model whose layers do not all keep every key in order: sliding windows do not."""
    windows = any(isinstance(layer, RotatingKVCache) for layer in model.make_cache())
    if windows or not model.attention_heads:
        raise _unreadable(model)


def _unreadable(model: LanguageModel) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the attention of {model.config.model_type} cannot be read so: choose another model"
    )


def _prefilled(
    model: LanguageModel, tokens: Sequence[int], known: PromptCache | None = None
) -> list[Any]:
    """Return a cache that holds these tokens."""
    cache, done = (None, 0) if known is None or not tokens else known.fetch([*tokens, 0])
    cache = model.make_cache() if cache is None else cache
    for at in range(done, len(tokens), prefill_chunk()):
        read_prompt(model, tokens[at : at + prefill_chunk()], cache)
    return cache


def _shares(scores: mx.array, tokens: int) -> np.ndarray:
    """Return `(heads, tokens)` from the scores `(1, heads, keys)` of the last keys."""
    shares = np.array(mx.softmax(scores[0].astype(mx.float32), axis=-1))
    return np.pad(shares, ((0, 0), (tokens - shares.shape[1], 0)))
