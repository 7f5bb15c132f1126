"""Values of options: a text from the command line becomes what the option means.

Each raises `argparse.ArgumentTypeError` where it cannot.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ...files import expanded
from ...settings import SPECULATION_MODES


def boolean(text: str) -> bool:
    """Parse true or false."""
    if text.lower() in ("true", "t", "1", "yes"):
        return True
    if text.lower() in ("false", "f", "0", "no"):
        return False
    raise argparse.ArgumentTypeError(f"true or false, not {text!r}")


def bias(text: str) -> tuple[int, float]:
    """Parse a token's id and what is added to its logit."""
    token, _, bias = text.partition("=")
    try:
        return whole(token), float(bias)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(
            f"TOKEN=BIAS, a token's id and a number, not {text!r}"
        ) from None


def given(text: str) -> str:
    """Parse a text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: leave the option out for the default")
    return text


def file(text: str) -> Path:
    """Parse a path: the shell leaves the ``~`` of ``--trace=~/file`` as it is."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name a file")
    return expanded(text, argparse.ArgumentTypeError)


def whole(text: str) -> int:
    """Parse a whole number."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if not _is_number(digits):
        raise argparse.ArgumentTypeError(f"a whole number{_OF_DIGITS}, not {text!r}")
    return sign * int(digits)


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not _is_number(text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a positive whole number{_OF_DIGITS}, not {text!r}")
    return int(text)


def count(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"a whole number of at least 0{_OF_DIGITS}, not {text!r}")
    return int(text)


def speculation(text: str) -> str | int:
    """Parse when to propose tokens: a mode, or how many at a time."""
    if text in SPECULATION_MODES:
        return text
    if not _is_number(text):
        raise argparse.ArgumentTypeError(
            f"{', '.join(SPECULATION_MODES)} or how many tokens at a time, not {text!r}"
        )
    return positive(text)


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"it must be a number, not {text!r}") from None


_MOST_DIGITS = 30
_OF_DIGITS = f" (of at most {_MOST_DIGITS} digits)"


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def token_count(text: str) -> int:
    """Parse a number of tokens, or −1 for no limit."""
    if text != "-1" and not (_is_number(text) and int(text) > 0):
        raise argparse.ArgumentTypeError(
            f"a positive whole number, or -1 for no limit, not {text!r}"
        )
    return int(text)
