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

from ... import limits
from ...errors import TokenizerError
from ..bpe import BPE, LLAMA3, build_tokenizer
from ..huggingface import read_tokenizer
from ..model_files import inside
from ..tokenizer import tokenizer_errors

_FILE = "tokenizer.model"
_SPECIAL_TOKENS = 256
_NAMED = (
    *("<|begin_of_text|>", "<|end_of_text|>"),
    *(f"<|reserved_special_token_{number}|>" for number in range(4)),
    *("<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"),
)
"""The first special tokens of Llama 3. The file does not list them: their ids follow those of its
own tokens, and 246 reserved ones come after them."""


def read_meta_tokenizer(folder: Path, config: dict[str, Any]) -> TokenizerWrapper:
    """Return the tokenizer of a folder; a ``tokenizer.json`` beside Meta's file is preferred.

    Raises:
        TokenizerError: there is none, or it cannot be read.
    """
    if inside(folder, "tokenizer.json").exists():
        return read_tokenizer(folder, config)
    file = inside(folder, _FILE)
    try:
        content = limits.read_bytes(file, limits.TOKENIZER_BYTES)
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error}; download it too") from error
    # A line of tiktoken's is a token in Base64, a space and its rank; SentencePiece's is binary.
    return _sentencepiece(file) if b"\0" in content else _tiktoken(file, content)


def _sentencepiece(file: Path) -> TokenizerWrapper:
    from transformers import LlamaTokenizer

    with tokenizer_errors(f"{file}: cannot be read as SentencePiece"):
        tokenizer = LlamaTokenizer.from_pretrained(file.parent, add_bos_token=True)
    with tempfile.TemporaryDirectory() as folder:  # mlx-lm reads from files how to stream text
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
    first = len(ordinary)  # the id of the first special token
    described = BPE(
        tokens=ordinary + special,
        merges=_merges(ranks),
        splitting=LLAMA3,
        control=range(first, first + len(special)),
        bos=first + _NAMED.index("<|begin_of_text|>"),
        eos=first + _NAMED.index("<|end_of_text|>"),
        further_ends=(first + _NAMED.index("<|eot_id|>"),),
        begins_with_bos=True,
    )
    return build_tokenizer(described, file)


def _merges(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make up a token, those of the lowest ranks first.

    tiktoken's file lists no merges: it joins any two neighbours that make up a token, the one of
    the lowest rank first. The same merges written out give the same tokens.
    """
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        known = [half for half in halves if half[0] in ranks and half[1] in ranks]
        known.sort(key=lambda half: (ranks[half[0]], ranks[half[1]]))
        merges += [(_as_text(left), _as_text(right)) for left, right in known]
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
