"""The tokenizer of a model, once it is known to work, and building one from its parts.

A tokenizer is built by libraries from files that a stranger wrote. What is wrong with it often
shows only when it is used, and then as any kind of error: this module turns those into one.

GGUF files and Meta's folders describe a tokenizer in two ways; both fill a `BPE`. There are two
kinds. In a byte-level one, as Llama 3, SmolLM and Qwen have, a regular expression splits a text
into pieces, and the bytes of each piece are written as printable characters. In SentencePiece's, as
Gemma and Phi-3 have, a text is one piece whose spaces are written as `▁`; a character that is no
token becomes its bytes. Then the merges join neighbours pairwise, in the order in which they are
listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import (
    BPEStreamingDetokenizer,
    SPMStreamingDetokenizer,
    TokenizerWrapper,
)
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

from ..errors import EntropixError, TokenizerError, brief, first_line

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
_PROBE = "The 1st « probe » of 12.5 %\n\tété 日本 🙂"
"""A text with some of everything: a broken rule of splitting or replacing shows here."""


class ModelTokenizer(TokenizerWrapper):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's tokenizer, which raises `TokenizerError` where the libraries below it fail."""

    @classmethod
    def around(cls, tokenizer: TokenizerWrapper, where: object) -> ModelTokenizer:
        """Return a tokenizer with these safeguards, after trying it.

        Raises:
            TokenizerError: a special token is no token, or a text cannot be encoded or decoded.
        """
        own = cls.__new__(cls)
        own.__dict__.update(vars(tokenizer))
        with tokenizer_errors(f"{where}: the tokenizer does not work"):
            for role in _ROLES:
                if getattr(own, role) == "":
                    raise TokenizerError(f"{where}: its {role} is empty; download it again")
            own.decode(own.encode(_PROBE))
        return own

    def encode(self, *arguments: Any, **options: Any) -> Any:
        with tokenizer_errors("the tokenizer cannot encode this text"):
            return self._tokenizer.encode(*arguments, **options)

    def decode(self, *arguments: Any, **options: Any) -> Any:
        with tokenizer_errors("the tokenizer cannot decode these tokens"):
            return self._tokenizer.decode(*arguments, **options)


@contextmanager
def tokenizer_errors(message: str) -> Iterator[None]:
    """Raise whatever a library raises as a `TokenizerError` that begins with a message.

    The tokenizers library is written in Rust: its panics derive from `BaseException` alone.
    """
    try:
        yield
    except (EntropixError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise TokenizerError(f"{message}: {first_line(error)}") from error


def end_tokens(stated: Any, where: object) -> list[int]:
    """Return the end-of-text ids that a configuration states: one, a list of them, or None.

    Raises:
        TokenizerError: it states something else, with which generation would never stop.
    """
    ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    for number in ids:
        if type(number) is not int:
            raise TokenizerError(
                f"{where}: eos_token_id must be a whole number or a list of them, not"
                f" {brief(stated)}"
            )
    return ids


LLAMA3 = "llama-bpe"
"""The name that GGUF gives to Llama 3's rule of splitting."""
SENTENCEPIECE, SENTENCEPIECE_SPACED = "sentencepiece", "sentencepiece after a space"
"""SentencePiece's kind; in the second, a space is put before a text."""
SPACE = "▁"
"""How SentencePiece writes a space."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class BPE:
    """What makes up a BPE tokenizer. Ids are places in `tokens`."""

    tokens: Sequence[str]
    """The vocabulary, its bytes or spaces written as the tokenizer's kind does it."""
    merges: Sequence[tuple[str, str]]
    """Pairs of tokens that become one, the most urgent first."""
    splitting: str
    """A key of `SPLITTINGS`, or one of the two names of SentencePiece's kind."""
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


def build_tokenizer(described: BPE, where: Path) -> TokenizerWrapper:
    """Return the tokenizer that a file describes.

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


def _check_id(role: str, number: Any, described: BPE, where: Path) -> None:
    if type(number) is not int or not 0 <= number < len(described.tokens):
        raise TokenizerError(
            f"{where}: the {role} token {number!r} is outside the vocabulary; use another file"
        )


def _wrap(described: BPE) -> TokenizerWrapper:
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
    if described.splitting == SENTENCEPIECE:
        # By default, this one takes away the space that a text begins with.
        detokenizer: Any = partial(SPMStreamingDetokenizer, trim_space=False)
    elif described.splitting == SENTENCEPIECE_SPACED:
        detokenizer = SPMStreamingDetokenizer
    else:
        detokenizer = BPEStreamingDetokenizer
    return TokenizerWrapper(fast, detokenizer, eos_token_ids=ends)


def _build(described: BPE) -> Tokenizer:
    tokens = described.tokens
    by_pieces = described.splitting in (SENTENCEPIECE, SENTENCEPIECE_SPACED)
    tokenizer = _sentencepiece(described) if by_pieces else _byte_level(described)
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


def _byte_level(described: BPE) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(described.tokens)}
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
    return tokenizer


def _sentencepiece(described: BPE) -> Tokenizer:
    unknown = None if described.unknown is None else described.tokens[described.unknown]
    vocabulary = {token: number for number, token in enumerate(described.tokens)}
    model = models.BPE(
        vocabulary, list(described.merges), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    spaced = described.splitting == SENTENCEPIECE_SPACED
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if spaced else spaces
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if spaced else []),
        ]
    )
    return tokenizer


def merges_by_score(
    tokens: Sequence[str], scores: Sequence[float], ordinary: Sequence[int]
) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece vocabulary, which lists a score for each token instead.

    SentencePiece joins the two neighbours that make the token of the highest score.

    Args:
        tokens: the vocabulary.
        scores: of each token.
        ordinary: the tokens that merges lead to; their parts are ordinary tokens, too.
    """
    known = {tokens[number] for number in ordinary}
    merges = []
    for number in sorted(ordinary, key=lambda number: -scores[number]):
        token = tokens[number]
        pairs = ((token[:place], token[place:]) for place in range(1, len(token)))
        merges += [(left, right) for left, right in pairs if left in known and right in known]
    return merges


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
