"""What a token looked at: attention over the prompt and the answer before it, by reading again."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.text_stream import TextStream
from ..engine.cached_text import CachedText
from ..engine.forward import Engine
from ..engine.runner import check_tokens
from ..errors import ContextLengthError, PromptError, UnsupportedModelError
from ..models.base import LanguageModel
from ..models.device import prefill_chunk
from ..models.llama.attention import Masked
from ..models.memory import wired_memory
from ..step import AttentionMap

LAST_PASS = 2
"""Tokens of the pass whose attention is kept: with several, a sliding window is in order."""


def attention_map(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    answer: Sequence[int] = (),
) -> AttentionMap:
    """Return the attention with which the token after a prompt and an answer was predicted.

    The text is computed once more, in one prefill without the token itself. The attention is that
    of its last position: for every layer `(heads, tokens)`, float32, of which each head's shares
    sum to 1 over the tokens of prompt and answer. Tokens out of a sliding window have 0.

    Raises:
        PromptError: there are no tokens, or one that the model does not have.
        ContextLengthError: the text is longer than the context.
        UnsupportedModelError: the model has no attention that can be read.
    """
    tokens = [*prompt, *answer]
    if not tokens:
        raise PromptError("nothing precedes the token: give the prompt that it answers")
    check_tokens(tokens, model.config.vocab_size)
    if len(tokens) > (context := model.config.max_position_embeddings):
        raise ContextLengthError(
            f"{len(tokens):,} tokens do not fit into the {context:,} of context"
        )
    begin, chunk = max(0, len(tokens) - LAST_PASS), prefill_chunk()
    engine, text = Engine(model), CachedText.empty(model)
    with wired_memory.raised():
        for at in range(0, begin, chunk):
            engine.prefill(text, tokens[at : min(at + chunk, begin)])
        read = model(mx.array([tokens[begin:]]), text.layers, "all")
        found = [s.scores if isinstance(s, Masked) else s for s in read.scores]
        arrays = [s for s in found if isinstance(s, mx.array) and s.shape[-1] <= len(tokens)]
        layers = [_shares(scores, len(tokens)) for scores in arrays]
    if not (read.attended and layers):
        raise UnsupportedModelError(
            f"the attention of {model.config.model_type} cannot be read: choose another model"
        )
    pieces = TextStream(tokenizer)
    return AttentionMap(tuple(map(pieces.add, tokens)), len(prompt), tuple(layers))


def _shares(scores: mx.array, tokens: int) -> np.ndarray:
    """Return `(heads, tokens)` from the scores `(1, heads, keys)` of the last keys."""
    shares = np.array(mx.softmax(scores[0].astype(mx.float32), axis=-1))
    return np.pad(shares, ((0, 0), (tokens - shares.shape[1], 0)))
