"""Find tokens that a model has hardly seen: reserved ones, and those with similar embeddings.

Training pushes all rows of the output head that are never the answer in the same direction, so the
rows of tokens that never occurred become alike (Land & Bartolo 2024, arXiv 2405.05417). If the
input embedding is a matrix of its own, its rows for such tokens get no gradient and only shrink by
weight decay. So the cosine distance to known unused tokens, or the norm, ranks the tokens to
suspect. Neither says where the suspicion ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper
from numpy.typing import NDArray

from ..errors import TokenizerError, whole_number
from ..models.base import LanguageModel
from ..models.llama.model import Model, own_model
from ..models.llama.weight_layout import unpacked

_TINY = 1e-12
"""Divide by this at least: a row of zeros then has the distance 1."""


class Indicator(StrEnum):
    """The measure that tokens are ranked by, smallest first."""

    DISTANCE = "distance"
    NORM = "norm"


@dataclass(frozen=True)
class Candidate:
    """A token to suspect."""

    token: int
    text: str
    """Empty for a row of the embedding that no token belongs to."""
    norm: float
    """Of the input embedding."""
    distance: float | None
    """Cosine distance, in the output head, to the mean of the tokens known to be unused; None if
    none is known."""


@dataclass(frozen=True)
class Findings:
    """The reserved tokens of a model, and the others in order of suspicion."""

    reserved: list[Candidate]
    """Tokens added to the vocabulary that neither end a text nor stand in the chat template; and
    the rows of the embedding beyond the vocabulary."""
    suspects: list[Candidate]
    indicator: Indicator
    """What the suspects are ranked by: the distance if the head is tied to the embedding and some
    tokens are known to be unused, else the norm."""
    mean: float
    deviation: float
    """Mean and standard deviation of the indicator, over all tokens."""


def find(
    model: LanguageModel, tokenizer: TokenizerWrapper, limit: int, unused: Sequence[int] = ()
) -> Findings:
    """Return the reserved tokens of a model, and its most suspect others.

    Args:
        model: from `load`, quantized or not; likewise the tokenizer.
        limit: of suspects.
        unused: tokens known to be unused; by default the reserved ones.

    Raises:
        TokenizerError: a token in `unused` is outside the vocabulary, or `limit` is negative.
        UnsupportedModelError: the model is not of the Llama family.
    """
    model = own_model(model, "the search for undertrained tokens")
    limit = whole_number("limit", limit)
    unused = [whole_number("unused", token) for token in unused]
    if limit < 0:
        raise TokenizerError(f"limit must be at least 0, not {limit}")
    vocab_size = model.config.vocab_size
    for token in unused:
        if not 0 <= token < vocab_size:
            raise TokenizerError(f"there is no token {token}: ids go from 0 to {vocab_size - 1}")
    reserved = reserved_tokens(tokenizer, vocab_size)
    norms, distances = _measure(model, list(unused) or reserved)
    if distances is not None and model.config.tie_word_embeddings:
        indicator, values = Indicator.DISTANCE, distances
    else:
        indicator, values = Indicator.NORM, norms
    order = values.argsort()
    others = order[~np.isin(order, reserved)]
    return Findings(
        reserved=_candidates(tokenizer, reserved, norms, distances),
        suspects=_candidates(tokenizer, others[:limit].tolist(), norms, distances),
        indicator=indicator,
        mean=float(values.mean()),
        deviation=float(values.std()),
    )


def reserved_tokens(tokenizer: TokenizerWrapper, vocab_size: int) -> list[int]:
    template = tokenizer.chat_template or ""
    used = {*tokenizer.eos_token_ids, tokenizer.bos_token_id, tokenizer.pad_token_id}
    used.add(tokenizer.unk_token_id)
    added = {
        token
        for text, token in tokenizer.get_added_vocab().items()
        if token < vocab_size and token not in used and text not in template
    }
    beyond = set(range(vocab_size)) - set(tokenizer.get_vocab().values())
    return sorted(added | beyond)


def _measure(
    model: Model, unused: list[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return the norms `(vocab,)` of the embedding, and the distances `(vocab,)` in the head."""
    embedding = model.model.embed_tokens
    head = embedding if model.config.tie_word_embeddings else model.lm_head
    norms = np.array(_norms(unpacked(embedding)))
    if not unused:
        return norms, None
    rows = unpacked(head).astype(mx.float32)
    mean = rows[mx.array(unused)].mean(axis=0)
    lengths = mx.maximum(_norms(rows) * _norms(mean), _TINY)
    return norms, np.array(1 - (rows @ mean) / lengths)


def _candidates(
    tokenizer: TokenizerWrapper,
    tokens: list[int],
    norms: NDArray[np.float32],
    distances: NDArray[np.float32] | None,
) -> list[Candidate]:
    return [
        Candidate(
            token,
            tokenizer.decode([token]),
            float(norms[token]),
            None if distances is None else float(distances[token]),
        )
        for token in tokens
    ]


def _norms(rows: mx.array) -> mx.array:
    return rows.astype(mx.float32).square().sum(axis=-1).sqrt()
