"""The tokenizer of a model: mlx-lm's, whose failures are `TokenizerError`.

A tokenizer is built by libraries from files that a stranger wrote. What is wrong with it often
shows only when it is used, and then as any kind of error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import EntropixError, TokenizerError, first_line

_PROBE = "The 1st « probe » of 12.5 %\n\tété 日本 🙂"
"""A text with some of everything: a broken rule of splitting or replacing shows here."""
_SMALLEST_VOCABULARY = 0.5
"""The share of a model's vocabulary that its tokenizer must know. Some ids of a model are padding
without a token, but never most of them."""


class ModelTokenizer(TokenizerWrapper):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's tokenizer, which raises `TokenizerError` where the libraries below it fail."""

    @classmethod
    def around(cls, tokenizer: TokenizerWrapper, where: object) -> ModelTokenizer:
        """Return a tokenizer with these safeguards, after trying it. Raises `TokenizerError` if a
        special token is no token, or a text cannot be encoded or decoded."""
        own = cls.__new__(cls)
        own.__dict__.update(vars(tokenizer))
        with tokenizer_errors(f"{where}: the tokenizer does not work"):
            if "" in (own.bos_token, own.eos_token, own.unk_token, own.pad_token):
                raise TokenizerError(f"{where}: a special token is empty; download it again")
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


def check_size(tokenizer: TokenizerWrapper, vocabulary: int, where: object) -> None:
    """Check that a tokenizer is of the size of a model's vocabulary. Raises `TokenizerError` if it
    is another model's."""
    size = len(tokenizer)
    # Tokens added to a vocabulary may go beyond the model's: many a padding token does.
    if tokenizer.vocab_size > vocabulary or size < _SMALLEST_VOCABULARY * vocabulary:
        raise TokenizerError(
            f"{where}: the tokenizer knows {size} tokens and the model {vocabulary}: it is another"
            " model's; copy the tokenizer files of the original model"
        )


def add_endings(tokenizer: TokenizerWrapper, tokens: tuple[str, ...]) -> None:
    """Have further tokens end an answer. Raises `TokenizerError` if one is no token of this
    model."""
    for token in tokens:
        # An unknown token would be taken for the one that stands for unknown texts.
        if not token.isdecimal() and token not in tokenizer.get_vocab():
            raise TokenizerError(
                f"{token!r} is no token of this model, so it cannot end an answer: name a token,"
                " or give --stop the text"
            )
        tokenizer.add_eos_token(token)
