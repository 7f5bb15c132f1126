"""Building the tokenizer of Meta's folders: SentencePiece for Llama 2, tiktoken for Llama 3.

Neither says how a conversation is written: there is no chat template.
"""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers.pre_tokenizers import ByteLevel

from ..errors import TokenizerError
from .gguf_tokenizer import CONTROL, gguf_tokenizer
from .huggingface import read_tokenizer, stay_inside

_FILE = "tokenizer.model"
_LARGEST_FILE = 5 * 10**7
_SPECIAL_TOKENS = 256
_NAMED = (
    *("<|begin_of_text|>", "<|end_of_text|>"),
    *(f"<|reserved_special_token_{number}|>" for number in range(4)),
    *("<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"),
)
"""The first special tokens of Llama 3, which follow those in the file; all others are reserved."""


def read_meta_tokenizer(folder: Path, config: dict[str, Any]) -> TokenizerWrapper:
    """Return the tokenizer of a folder; a ``tokenizer.json`` put there goes before Meta's file.

    Raises:
        TokenizerError: there is none, or it cannot be read.
    """
    if (stay_inside(folder, "tokenizer.json")).exists():
        return read_tokenizer(folder, config)
    file = stay_inside(folder, _FILE)
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise TokenizerError(f"{file}: too large for a tokenizer; download it again")
        content = file.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error}; download it too") from error
    # A line of tiktoken's is a token in Base64, a space and its rank; SentencePiece's is binary.
    return _sentencepiece(file) if b"\0" in content else _tiktoken(file, content)


def _sentencepiece(file: Path) -> TokenizerWrapper:
    from transformers import LlamaTokenizer

    try:
        tokenizer = LlamaTokenizer.from_pretrained(file.parent, add_bos_token=True)
    except Exception as error:  # transformers raises whatever its many parsers raise
        reason = next(iter(str(error).splitlines()), repr(error))
        raise TokenizerError(f"{file}: cannot be read as SentencePiece: {reason}") from error
    with tempfile.TemporaryDirectory() as folder:  # from where mlx-lm finds out how to stream it
        tokenizer.save_pretrained(folder)
        return read_tokenizer(Path(folder), {"eos_token_id": tokenizer.eos_token_id})


def _tiktoken(file: Path, content: bytes) -> TokenizerWrapper:
    try:
        pairs = (line.split() for line in content.splitlines())
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError as error:
        raise TokenizerError(f"{file}: cannot be read as tiktoken's: {error}") from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise TokenizerError(f"{file}: its ranks have gaps; download it again")
    reserved = range(len(_NAMED) - 5, _SPECIAL_TOKENS - 5)
    special = [*_NAMED, *(f"<|reserved_special_token_{number}|>" for number in reserved)]
    ordinary = [_as_text(token) for token in sorted(ranks, key=ranks.__getitem__)]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": ordinary + special,
        "tokenizer.ggml.token_type": [1] * len(ordinary) + [CONTROL] * len(special),
        "tokenizer.ggml.merges": _merges(ranks),
        "tokenizer.ggml.bos_token_id": len(ranks),
        "tokenizer.ggml.eos_token_id": len(ranks) + 1,
        "tokenizer.ggml.eot_token_id": len(ranks) + _NAMED.index("<|eot_id|>"),
        "tokenizer.ggml.add_bos_token": True,
    }
    return gguf_tokenizer(file, metadata)


def _merges(ranks: dict[bytes, int]) -> list[str]:
    """Return all pairs of tokens that make up a token, those of the lowest ranks first."""
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        known = [half for half in halves if half[0] in ranks and half[1] in ranks]
        known.sort(key=lambda half: (ranks[half[0]], ranks[half[1]]))
        merges += [f"{_as_text(left)} {_as_text(right)}" for left, right in known]
    return merges


def _as_text(token: bytes) -> str:
    return "".join(_CHARACTERS[byte] for byte in token)


def _characters() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary.

    Printable ones stand for themselves; the others, in order, for those from U+0100 on.
    """
    alphabet = set(ByteLevel.alphabet())
    others = iter(sorted(character for character in alphabet if ord(character) > 0xFF))
    return [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(256)]


_CHARACTERS = _characters()
