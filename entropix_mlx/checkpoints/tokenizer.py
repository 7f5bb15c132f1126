"""The tokenizer of a model, once it is known to work.

A tokenizer is built by libraries from files that a stranger wrote. What is wrong with it often
shows only when it is used, and then as any kind of error: this module turns those into one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import EntropixError, TokenizerError, brief, first_line

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
_PROBE = "The 1st « probe » of 12.5 %\n\tété 日本 🙂"
"""A text with some of everything: a broken rule of splitting or replacing shows here."""


class ModelTokenizer(TokenizerWrapper):  # type: ignore[misc]  # mlx-lm has no types
    """mlx-lm's tokenizer, which raises `TokenizerError` where the libraries below it fail."""

    @classmethod
    def around(cls, tokenizer: TokenizerWrapper, where: object) -> ModelTokenizer:
        """Return a tokenizer with these safeguards, after trying it.

        Args:
            tokenizer: as mlx-lm or `bpe` built it.
            where: its file or folder, for messages.

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
        """Encode a text as transformers does."""
        with tokenizer_errors("the tokenizer cannot encode this text"):
            return self._tokenizer.encode(*arguments, **options)

    def decode(self, *arguments: Any, **options: Any) -> Any:
        """Decode tokens as transformers does."""
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
