"""The tokenizer inside a GGUF file: its metadata describes a BPE, byte-level or SentencePiece's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...errors import TokenizerError
from ..tokenizer import (
    BPE,
    LLAMA3,
    SENTENCEPIECE,
    SENTENCEPIECE_SPACED,
    SPLITTINGS,
    build_tokenizer,
    merges_by_score,
)

_ORDINARY, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
"""Token types of the GGUF format."""
_BYTE_LEVEL, _SENTENCEPIECE = "gpt2", "llama"
"""The two kinds of tokenizer, by GGUF's names."""


def gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> TokenizerWrapper:
    """Return the tokenizer with its chat template and end-of-text tokens.

    Raises:
        TokenizerError: the tokenizer is missing, of another kind, or a byte-level BPE with an
            unknown splitting rule.
    """
    return build_tokenizer(_describe(path, metadata), path)


def _describe(path: Path, metadata: dict[str, Any]) -> BPE:
    def get(name: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}", default)

    def ids_of(*types: int) -> list[int]:
        return [n for n, kind in enumerate(token_types[: len(tokens)]) if kind in types]

    tokens = _texts(path, "tokens", get("tokens"))
    token_types = get("token_type", [])
    if not isinstance(token_types, list):
        raise TokenizerError(f"{path}: its token types are no list; download the file again")
    by_scores = get("model") == _SENTENCEPIECE and isinstance(get("scores"), list)
    if by_scores:
        spaced = get("add_space_prefix", True)
        splitting = SENTENCEPIECE_SPACED if spaced else SENTENCEPIECE
        merges = _merges_by_score(path, tokens, get("scores"), ids_of(_ORDINARY))
    else:
        splitting = _splitting(path, get("model"), get("pre", "default"))
        merges = _merges(path, get("merges", []))
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise TokenizerError(f"{path}: its chat template is no text; download the file again")
    end_of_turn = get("eot_token_id")
    return BPE(
        tokens=tokens,
        merges=merges,
        splitting=splitting,
        control=ids_of(_UNKNOWN, _CONTROL),
        unsplit=ids_of(_USER_DEFINED),
        bos=get("bos_token_id"),
        eos=get("eos_token_id"),
        further_ends=() if end_of_turn is None else (end_of_turn,),
        padding=get("padding_token_id"),
        unknown=get("unknown_token_id"),
        # Files of Llama 3 usually do not say it; llama.cpp, too, concludes it from the rule.
        begins_with_bos=bool(get("add_bos_token", by_scores or splitting == LLAMA3)),
        chat_template=template,
    )


def _splitting(path: Path, kind: Any, splitting: Any) -> str:
    if kind != _BYTE_LEVEL or not isinstance(splitting, str) or splitting not in SPLITTINGS:
        raise TokenizerError(
            f"{path}: its tokenizer ({kind}, {splitting}) cannot be rebuilt from GGUF; use the"
            " model's Hugging Face folder, which has a tokenizer.json"
        )
    return splitting


def _merges_by_score(
    path: Path, tokens: list[str], scores: list[Any], ordinary: list[int]
) -> list[tuple[str, str]]:
    if len(scores) != len(tokens) or not all(isinstance(score, int | float) for score in scores):
        raise TokenizerError(
            f"{path}: its tokenizer cannot be built: there must be a score for each of its"
            f" {len(tokens)} tokens; download the file again"
        )
    return merges_by_score(tokens, scores, ordinary)


def _texts(path: Path, name: str, values: Any) -> list[str]:
    if values is None:
        raise TokenizerError(
            f"{path}: no tokenizer inside (the key tokenizer.ggml.{name} is missing); use another"
            " file"
        )
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TokenizerError(f"{path}: its {name} are no list of texts; download the file again")
    return values


def _merges(path: Path, values: Any) -> list[tuple[str, str]]:
    """Return the pairs; GGUF writes each as a text with a space between its two tokens."""
    pairs = [tuple(merge.split(" ")) for merge in _texts(path, "merges", values)]
    for pair in pairs:
        if len(pair) != 2:
            raise TokenizerError(
                f"{path}: its tokenizer cannot be built: {' '.join(pair)!r} is no pair of tokens;"
                " download the file again"
            )
    return [(left, right) for left, right in pairs]
