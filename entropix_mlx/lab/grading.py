"""Grading: whether the text of an answer is right, by a rule that cannot reward length.

What counts is the first line that is not blank, and in it the first thing that could be an answer.
A longer text gets no second try.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from ..errors import PromptError, brief

ARTICLES = (["the"], ["a"], ["an"])
EXACT_DIGITS = 15  # that a float holds exactly

_NUMBER = re.compile(r"[-−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
_EQUATION = re.compile(r"^[\s\d.,+*/x×÷()−-]+=")
_HYPHEN = re.compile(r"(?<=\w)-(?=\w)")
_QUOTES = " \t\"'*`“”‘’"
_END = re.compile(r"[.,;:!?()\n](?!\d)")
_OPTION = re.compile(r"^\W*([A-Za-z])(?![A-Za-z])")


def is_right(rule: str, text: str, answers: Sequence[str]) -> bool:
    if rule == "contains":
        line = first_line(text)
        return any(
            re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", line, re.IGNORECASE)
            for answer in answers
        )
    given = RULES[rule](text)
    return bool(given) and given in {RULES[rule](answer) for answer in answers}


def check_rule(rule: object, answers: Sequence[str]) -> None:
    """Check that a rule exists and that its right answers can be compared.

    Raises:
        PromptError: there is no such rule, or an answer that it cannot use.
    """
    if not isinstance(rule, str) or rule not in RULES:
        raise PromptError(f"no grading rule {brief(rule)}: use one of {', '.join(RULES)}")
    for answer in answers:
        compared = RULES[rule](answer)
        if not compared or (rule in ("number", "last") and compared.endswith("inf")):
            raise PromptError(
                f"the rule {rule} finds nothing to compare in the answer {brief(answer)}:"
                " use another rule, such as exact"
            )


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


def _number(text: str) -> str:
    """Return the first number of the line, or of what follows its equals sign."""
    return next(iter(_numbers(_right_hand_side(first_line(text)))), "")


def _last(text: str) -> str:
    return next(reversed(_numbers(first_line(text))), "")


def _choice(text: str) -> str:
    found = _OPTION.match(first_line(text))
    return found[1].upper() if found else ""


def _plain(text: str) -> str:
    """Return the first line without case, accents, articles, quotes, and what follows punctuation.

    So "The Paris, of course." and "paris" are the same.
    """
    line = _bare(first_line(text))
    return _bare_words(line if _END.match(line) else _END.split(line, maxsplit=1)[0])


def _numbers(text: str) -> list[str]:
    """Return the numbers in a text, plainly written."""
    return [_plain_number(found) for found in _NUMBER.findall(text)]


def _plain_number(number: str) -> str:
    """Return a number without what sets thousands off, and with an ASCII sign."""
    value = float(number.replace(",", "").replace("−", "-"))
    return f"{value + 0.0:.{EXACT_DIGITS}g}"  # not "-0"


def _right_hand_side(line: str) -> str:
    """Return what follows the equals sign of a line that repeats a sum, or the line."""
    repeated = _EQUATION.match(line)
    return line[repeated.end() :] if repeated else line


def _bare(text: str) -> str:
    """Return a text without case, accents, and quotes around it."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    kept = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return kept.strip(_QUOTES)


def _bare_words(text: str) -> str:
    """Return the words of a bare text without an article before them."""
    joined = text.replace("'", "").replace("’", "").strip(_QUOTES)
    words = _HYPHEN.sub(" ", joined).split()
    return " ".join(words[1:] if words[:1] in ARTICLES else words)


RULES: dict[str, Callable[[str], str]] = {
    "number": _number,
    "last": _last,
    "exact": _plain,
    "choice": _choice,
    "contains": first_line,
}
"""By name: what a rule compares of a text; `contains` looks for the answer in the first line."""
