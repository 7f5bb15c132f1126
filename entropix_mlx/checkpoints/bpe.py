"""Building a byte-level BPE tokenizer, as Llama 3, SmolLM and Qwen have, from what describes it.

GGUF files and Meta's folders describe the same kind of tokenizer in two ways; both fill a
`ByteLevelBPE`. A text becomes tokens in three steps: a regular expression splits it into pieces,
the bytes of each piece are written as printable characters, and the merges join those pairwise, in
the order in which they are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from ..errors import TokenizerError
from .tokenizer import ModelTokenizer, tokenizer_errors

LLAMA3 = "llama-bpe"
"""The name that GGUF gives to Llama 3's rule of splitting."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class ByteLevelBPE:
    """What makes up a byte-level BPE tokenizer. Ids are places in `tokens`."""

    tokens: Sequence[str]
    """The vocabulary; each byte of a token is written as a printable character."""
    merges: Sequence[tuple[str, str]]
    """Pairs of tokens that become one, the most urgent first."""
    splitting: str
    """A key of `SPLITTINGS`."""
    control: Sequence[int] = ()
    """Tokens that stand for no text, as the end of a turn."""
    unsplit: Sequence[int] = ()
    """Tokens of ordinary text that are found before a text is split."""
    bos: int | None = None
    eos: int | None = None
    further_ends: Sequence[int] = ()
    """Tokens that end an answer as `eos` does."""
    padding: int | None = None
    unknown: int | None = None
    begins_with_bos: bool = False
    """Whether every text that is encoded begins with `bos`."""
    chat_template: str | None = None


def build_tokenizer(described: ByteLevelBPE, where: Path) -> TokenizerWrapper:
    """Return the tokenizer that is described.

    Args:
        described: what makes it up.
        where: the file that says so, for messages.

    Raises:
        TokenizerError: an id is outside the vocabulary, or the parts do not fit each other.
    """
    for role in ("bos", "eos", "padding", "unknown"):
        number = getattr(described, role)
        if number is not None:
            _check_id(role, number, described, where)
    for number in described.further_ends:
        _check_id("eot", number, described, where)
    with tokenizer_errors(f"{where}: its tokenizer cannot be built"):
        built = _wrap(described)
    return ModelTokenizer.around(built, where)


def _check_id(role: str, number: Any, described: ByteLevelBPE, where: Path) -> None:
    if type(number) is not int or not 0 <= number < len(described.tokens):
        raise TokenizerError(
            f"{where}: the {role} token {number!r} is outside the vocabulary; use another file"
        )


def _wrap(described: ByteLevelBPE) -> TokenizerWrapper:
    def text(number: int | None) -> str | None:
        return None if number is None else described.tokens[number]

    fast = PreTrainedTokenizerFast(
        tokenizer_object=_build(described),
        bos_token=text(described.bos),
        eos_token=text(described.eos),
        pad_token=text(described.padding),
        unk_token=text(described.unknown),
        chat_template=described.chat_template,
        clean_up_tokenization_spaces=False,
    )
    ends = list(described.further_ends)
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, eos_token_ids=ends)


def _build(described: ByteLevelBPE) -> Tokenizer:
    tokens = described.tokens
    vocabulary = {token: number for number, token in enumerate(tokens)}
    # Llama 3's merges do not lead to every token of its vocabulary: a piece that is a token as it
    # stands is taken whole.
    model = models.BPE(
        vocabulary, list(described.merges), ignore_merges=described.splitting == LLAMA3
    )
    tokenizer = Tokenizer(model)
    if described.splitting == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = SPLITTINGS[described.splitting]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(tokens[number], normalized=False, special=True) for number in described.control]
    )
    tokenizer.add_tokens(
        [AddedToken(tokens[number], normalized=False) for number in described.unsplit]
    )
    if described.begins_with_bos and described.bos is not None:
        bos = tokens[described.bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, described.bos)]
        )
    return tokenizer


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3(digits: str = r"\p{N}{1,3}") -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_LLAMA3_SPLIT % digits), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])


def _qwen2() -> pre_tokenizers.PreTokenizer:
    return _llama3(digits=r"\p{N}")


SPLITTINGS = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    LLAMA3: _llama3,
    "qwen2": _qwen2,
}
"""How a text is split into pieces before merging, by the names that GGUF gives to the rules."""
