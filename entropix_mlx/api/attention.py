"""What the positions of a text look at, read again: generating the text costs nothing more.

    tokens      the   sky   is   blue
    weights                 ■■□   ■□□■      (heads, keys) of each query, in every layer

A map is of one token; RAUQ is a score of an answer, from how much each token looks at the one
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.text_stream import TextStream
from ..engine.cached_text import CachedText
from ..engine.forward import Engine
from ..engine.runner import check_tokens
from ..errors import PromptError, UnsupportedModelError
from ..models.base import LanguageModel
from ..models.device import prefill_chunk
from ..models.llama.attention import AttentionQueries, Masked
from ..models.llama.cache import BlockCache
from ..models.memory import wired_memory
from ..profiles.confidence import RAUQ_ALPHA, rauq_of_layer
from ..samplers.metrics.attention import RUN_SCORES
from ..step import NOT_OF_THE_MODEL, Attended, AttentionMap, Step
from .score import check_room

ATTENDED = 16
"""Tokens of the answer that are kept for each token by `attended`: those with the largest
shares."""


def attention_map(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    answer: Sequence[int] = (),
    cached: CachedText | None = None,
) -> AttentionMap:
    """Return the attention with which the token after a prompt and an answer was predicted.

    The text is read again without that token, in one prefill. The attention is that of its last
    position: for every layer `(heads, tokens)`, float32, of which each head's shares sum to 1 over
    the tokens of prompt and answer. Tokens outside a sliding window have 0. What is `cached` of the
    text is copied, not computed again.

    Raises:
        PromptError: there are no tokens, or one that the model does not have.
        ContextLengthError: the text is longer than the context.
        UnsupportedModelError: the model has no attention that can be read.
    """
    tokens = [*prompt, *answer]
    if not tokens:
        raise PromptError("nothing precedes the token: give the prompt that it answers")
    check_tokens(tokens, model.config.vocab_size)
    check_room(0, len(tokens), model.config.max_position_embeddings, split=False)
    begin = max(0, len(tokens) - 2)  # a sliding window is in order in a pass of several tokens only
    with wired_memory.raised():
        text = _prefilled(model, tokens[:begin], cached)
        read = model(mx.array([tokens[begin:]]), text.layers, "all")
        found = [s.scores if isinstance(s, Masked) else s for s in read.scores]
        arrays = [s for s in found if isinstance(s, mx.array) and s.shape[-1] <= len(tokens)]
        layers = tuple(_attention_shares(scores, len(tokens)) for scores in arrays)
    if not (read.attended and layers):
        raise _unreadable(model)
    return AttentionMap(tuple(map(TextStream(tokenizer).add, tokens)), len(prompt), layers)


def _attention_shares(scores: mx.array, tokens: int) -> np.ndarray:
    """Return `(heads, tokens)` from the scores `(1, heads, keys)` of the last keys."""
    shares = np.array(mx.softmax(scores[0].astype(mx.float32), axis=-1))
    return np.pad(shares, ((0, 0), (tokens - shares.shape[1], 0)))


def _prefilled(
    model: LanguageModel, tokens: Sequence[int], cached: CachedText | None = None
) -> CachedText:
    """Return a text of its own with these tokens; those that are `cached` are copied."""
    text, chunk = cached or CachedText.empty(model), prefill_chunk()
    text = text.copy(text.common(tokens))
    for at in range(len(text.ids), len(tokens), chunk):
        Engine(model).prefill(text, tokens[at : at + chunk])
    return text


def _unreadable(model: LanguageModel) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the attention of {model.config.model_type} cannot be read so: choose another model"
    )


def attention_rows(
    model: LanguageModel, tokens: Sequence[int], first: int
) -> Iterator[list[mx.array]]:
    """Yield the attention weights of the tokens from `first` on, a few tokens at a time.

    There is an array a layer: `(queries, heads, keys)`, which sums to 1 over the keys. They begin
    with the text's first token; those behind a query are 0.

    Raises:
        PromptError: the model does not have a token.
        UnsupportedModelError: its attention cannot be read for several tokens at once.
    """
    check_tokens(tokens, model.config.vocab_size)
    if not model.measures_blocks:
        raise _unreadable(model)
    with wired_memory.raised():
        text = _prefilled(model, tokens[:first])
        while first < len(tokens):
            seen = model.config.num_attention_heads * len(tokens)
            end = min(first + max(1, min(prefill_chunk(), RUN_SCORES // seen)), len(tokens))
            watched = [BlockCache(layer) for layer in text.layers]
            _, found = model.states(mx.array([tokens[first:end]]), watched, "all")
            scores = [each.scores() for each in found if isinstance(each, AttentionQueries)]
            yield [mx.softmax(each.astype(mx.float32), axis=-1) for each in scores]
            first = end


def attended(
    model: LanguageModel, prompt: Sequence[int], answer: Sequence[int]
) -> Iterator[Attended]:
    """Yield what each token of an answer looked at when it was predicted.

    Raises:
        ContextLengthError: the text is longer than the context.
        PromptError, UnsupportedModelError: as for `attention_rows`.
    """
    tokens = [*prompt, *answer[:-1]]
    check_room(0, len(tokens), model.config.max_position_embeddings, split=False)
    index = 0
    for weights in attention_rows(model, tokens, len(prompt) - 1):
        for row in np.array(sum(each.mean(axis=1) for each in weights) / len(weights)):
            shares = row[len(prompt) : len(prompt) + index]
            largest = np.argsort(-shares, kind="stable")[:ATTENDED]
            seen = [[int(at), round(float(shares[at]), 5)] for at in largest]
            yield Attended(index, round(float(row[: len(prompt)].sum()), 5), seen)
            index += 1


def attention_to(
    model: LanguageModel, prompt: Sequence[int]
) -> Callable[[Sequence[int]], Iterator[Attended]]:
    """Return `attended` for a prompt whose answer is not known yet.

    Raises:
        UnsupportedModelError: as for `attention_rows`.
    """
    if not model.measures_blocks:
        raise _unreadable(model)
    return partial(attended, model, prompt)


def previous_attention(
    model: LanguageModel, prompt: Sequence[int], steps: Sequence[Step]
) -> tuple[tuple[float, ...], ...]:
    """Return how much one head of each layer attends to the token before each of an answer's.

    The layers are those of the middle third; of each, it is the head that attends to them most on
    average. Of the position that predicts a token, the token before is its own. There is a number
    for each of the model's own tokens but the first, and no layer where there are no such tokens.

    Raises:
        PromptError, UnsupportedModelError: as for `attention_rows`.
    """
    own = [at for at, step in enumerate(steps) if step.origin not in NOT_OF_THE_MODEL]
    if not own:
        return ()
    tokens = [*prompt, *(step.token for step in steps)]
    columns: list[npt.NDArray[np.float32]] = []
    for weights in attention_rows(model, tokens[:-1], len(prompt)):
        keys = len(prompt) + sum(each.shape[-1] for each in columns)
        places = mx.arange(keys, keys + weights[0].shape[0])[:, None, None]
        found = [mx.take_along_axis(weights[at], places, axis=-1) for at in _middle(weights)]
        columns.append(np.array(mx.stack(found)[..., 0].swapaxes(1, 2)))
    if not columns:
        return ((),) * len(_middle(range(model.config.num_hidden_layers)))
    rows = np.concatenate(columns, axis=-1)[..., [at - 1 for at in own[1:]]]
    heads = rows.sum(axis=-1).argmax(axis=1)
    return tuple(tuple(map(float, layer[head])) for layer, head in zip(rows, heads, strict=True))


def _middle(layers: Sequence[object]) -> range:
    """Return the layers whose heads are taken: the middle third and a little more, as published."""
    count = len(layers)
    return range(count // 3, min(count, -(-2 * count // 3) + 1))


def rauq(
    model: LanguageModel,
    prompt: Sequence[int],
    steps: Sequence[Step],
    alpha: float = RAUQ_ALPHA,
) -> float:
    """Return the RAUQ of an answer (arXiv 2505.20045): lower is surer.

    Args:
        model: the one that gave the answer.
        prompt: the tokens that the answer is to.
        steps: the answer, as `stream_generate` yields it.
        alpha: the weight of a token's own probability.

    Raises:
        PromptError: no token of the answer is the model's own; or as for `attention_rows`.
        UnsupportedModelError: as for `attention_rows`.
    """
    logprob = [step.logprob for step in steps if step.origin not in NOT_OF_THE_MODEL]
    if not logprob:
        raise PromptError("no token of the answer is the model's own: there is nothing to score")
    layers = previous_attention(model, prompt, steps)
    return max(rauq_of_layer(logprob, layer, alpha) for layer in layers)
