"""Grading: whether the text of an answer is right, by a rule that cannot reward length.

What counts is the first line that is not blank, and in it the first thing that could be an answer.
A longer text gets no second try.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import regex

from ... import limits
from ...answer.short_texts import bare, bare_words, numbers, right_hand_side
from ...errors import PromptError, brief

_END = re.compile(r"[.,;:!?()\n](?!\d)")
_MARK = "####"
_REPEATS = re.compile(r"(?<=[{,])[1-9]\d*(?=[},])")
_OPTION = re.compile(r"^\W*([A-Za-z])(?![A-Za-z])")


def is_right(rule: str, text: str, answers: Sequence[str]) -> bool:
    if rule in _PATTERNS:
        line = first_line(text)
        return any(_search(_PATTERNS[rule](answer), line) for answer in answers)
    of_answer = _solution if rule == "final" else RULES[rule]
    given = RULES[rule](text)
    return bool(given) and given in {of_answer(answer) for answer in answers}


def extracted(rule: str, text: str) -> str:
    """Return the part of a text that its rule compares; empty where there is nothing to grade."""
    return RULES[rule](text)


def check_rule(rule: object, answers: Sequence[str]) -> None:
    """Check that a rule exists and that its right answers can be compared.

    Raises:
        PromptError: there is no such rule, or an answer that it cannot use.
    """
    if not isinstance(rule, str) or rule not in RULES:
        raise PromptError(f"no grading rule {brief(rule)}: use one of {', '.join(RULES)}")
    for answer in answers:
        if len(answer) > limits.ANSWER_CHARACTERS:
            raise PromptError(
                f"an answer of {len(answer):,} characters is too long: write"
                f" {limits.ANSWER_CHARACTERS:,} at most"
            )
        if rule in ("number", "last", "final") and _first_number(answer) in ("", "inf", "-inf"):
            raise PromptError(
                f"the answer {brief(answer)} is no number: use another rule, such as exact"
            )
        if rule == "choice" and not _choice(answer):
            raise PromptError(
                f"the answer {brief(answer)} is no letter, which the rule choice needs"
            )
        if rule == "regex":
            _check_pattern(answer)


def _check_pattern(answer: str) -> None:
    if len(answer) > limits.PATTERN_CHARACTERS:
        raise PromptError(
            f"a regular expression may have {limits.PATTERN_CHARACTERS:,} characters, not"
            f" {len(answer):,}"
        )
    repeats = math.prod(int(count) for count in _REPEATS.findall(answer))
    if repeats > limits.PATTERN_REPEATS:  # they are written out when it is compiled
        raise PromptError(
            f"a regular expression may repeat a part {limits.PATTERN_REPEATS:,} times, and"
            f" {brief(answer)} has repeats of {brief(repeats)}"
        )
    try:
        regex.compile(answer)
    except (regex.error, RecursionError) as error:
        raise PromptError(f"the answer {brief(answer)} is no regular expression: {error}") from None


def _search(pattern: Any, line: str) -> bool:
    """Search for an expression, for a bounded time: one with repeats in repeats may need for ever.

    Raises:
        PromptError: the time is over.
    """
    try:
        return pattern.search(line, timeout=limits.PATTERN_SECONDS) is not None
    except TimeoutError:
        raise PromptError(
            f"a regular expression took more than {limits.PATTERN_SECONDS:g} s on this answer:"
            " write it without repeats within repeats"
        ) from None


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


def _number(text: str) -> str:
    """Return the first number of the line, or of what follows its equals sign."""
    return _first_number(right_hand_side(first_line(text)))


def _last(text: str) -> str:
    return next(reversed(numbers(first_line(text))), "")


def _final(text: str) -> str:
    return _first_number(text.partition(_MARK)[2])


def _solution(answer: str) -> str:
    """Return the number of a right answer: after its mark, where it is a whole solution."""
    return _first_number(answer.rpartition(_MARK)[2])


def _first_number(text: str) -> str:
    return next(iter(numbers(text)), "")


def _choice(text: str) -> str:
    found = _OPTION.match(first_line(text))
    return found[1].upper() if found else ""


def _plain(text: str) -> str:
    """Return the first line without case, accents, articles, quotes, and what follows punctuation.

    So "The Paris, of course." and "paris" are the same.
    """
    line = bare(first_line(text))
    return bare_words(line if _END.match(line) else _END.split(line, maxsplit=1)[0])


RULES: dict[str, Callable[[str], str]] = {
    "number": _number,
    "last": _last,
    "exact": _plain,
    "choice": _choice,
    "regex": _plain,
    "contains": _plain,
    "final": _final,
}
"""By name: what a rule compares of a text."""

_PATTERNS: dict[str, Callable[[str], Any]] = {
    "regex": regex.compile,
    "contains": lambda answer: regex.compile(
        rf"(?<!\w){regex.escape(answer)}(?!\w)", regex.IGNORECASE
    ),
}
"""Rules that look for an answer anywhere in the first line."""
