"""Grading: whether the text of an answer is right, by a rule that cannot reward length.

What counts is the first line that is not blank, and in it the first thing that could be an answer.
A longer text gets no second try.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from ...errors import PromptError

_NUMBER = re.compile(r"[-−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
_EQUATION = re.compile(r"^[\s\d.,+*/x×÷()−-]+=")
_END = re.compile(r"[.,;:!?()\n]")
_MARK = "####"
_OPTION = re.compile(r"^\W*([A-Za-z])(?![A-Za-z])")

Rule = Callable[[str, Sequence[str]], bool]
"""Takes the text of an answer and the right answers; tells whether it is right."""


def is_right(rule: str, text: str, answers: Sequence[str]) -> bool:
    """Tell whether a text is a right answer.

    Args:
        rule: a key of `RULES`.
        text: what was generated.
        answers: the right answers.
    """
    return RULES[rule](text, answers)


def extracted(rule: str, text: str) -> str:
    """Return the part of a text that its rule compares: two texts with the same one say the same.

    For the rule ``regex``, which may match anywhere, that is the first line.
    """
    if rule == "number":
        number = first_number(_after_equation(first_line(text)))
        return "" if number is None else f"{number:g}"
    if rule == "last":
        number = last_number(first_line(text))
        return "" if number is None else f"{number:g}"
    if rule == "final":
        number = first_number(text.partition(_MARK)[2])
        return "" if number is None else f"{number:g}"
    if rule == "choice":
        return chosen(text)
    return plain(first_line(text))


def check_rule(rule: object, answers: Sequence[str]) -> None:
    """Check that a rule exists and that its right answers can be compared.

    Raises:
        PromptError: there is no such rule, or an answer that it cannot use.
    """
    if rule not in RULES:
        raise PromptError(f"no grading rule {rule!r}: use one of {', '.join(RULES)}")
    for answer in answers:
        if rule in ("number", "last", "final") and first_number(answer) is None:
            raise PromptError(
                f"the answer {answer!r} is no number: use another rule, such as exact"
            )
        if rule == "choice" and not chosen(answer):
            raise PromptError(f"the answer {answer!r} is no letter, which the rule choice needs")
        if rule == "regex":
            try:
                re.compile(answer)
            except re.error as error:
                raise PromptError(
                    f"the answer {answer!r} is no regular expression: {error}"
                ) from None


def first_line(text: str) -> str:
    """Return the first line that is not blank, without the spaces around it."""
    return text.strip().partition("\n")[0].strip()


def first_number(text: str) -> float | None:
    """Return the first number in a text; thousands may be set off by commas."""
    found = _NUMBER.search(text)
    return float(found[0].replace(",", "").replace("−", "-")) if found else None


def last_number(text: str) -> float | None:
    """Return the last number in a text; thousands may be set off by commas."""
    found = _NUMBER.findall(text)
    return first_number(found[-1]) if found else None


def plain(text: str) -> str:
    """Return a text without case, accents, articles, quotes, and what follows a punctuation mark.

    So "The Paris, of course." and "paris" are the same.
    """
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    bare = bare.strip(" \t\"'*`“”‘’")
    bare = _END.split(bare, maxsplit=1)[0] if not _END.match(bare) else bare
    words = bare.replace("-", " ").replace("'", "").replace("’", "").strip(' "*`“”').split()
    if words and words[0] in ("the", "a", "an"):
        words = words[1:]
    return " ".join(words)


def chosen(text: str) -> str:
    """Return the letter that stands first in an answer such as "B", "(b) Paris" or "B."."""
    found = _OPTION.match(first_line(text))
    return found[1].upper() if found else ""


def _after_equation(line: str) -> str:
    """Return what follows the equals sign of a line that repeats the sum before its result."""
    repeated = _EQUATION.match(line)
    return line[repeated.end() :] if repeated else line


def _number(text: str, answers: Sequence[str]) -> bool:
    given = first_number(_after_equation(first_line(text)))
    return given is not None and any(given == first_number(answer) for answer in answers)


def _last(text: str, answers: Sequence[str]) -> bool:
    """Grade the number at which a sentence arrives; numbers that it names before are no tries."""
    given = last_number(first_line(text))
    return given is not None and any(given == first_number(answer) for answer in answers)


def _final(text: str, answers: Sequence[str]) -> bool:
    """Grade the number after the first ``####``, with which GSM8K's solutions end."""
    given = first_number(text.partition(_MARK)[2])
    return given is not None and any(given == _of_solution(answer) for answer in answers)


def _of_solution(answer: str) -> float | None:
    """Return the number of a right answer: after its mark, where it is a whole solution."""
    return first_number(answer.rpartition(_MARK)[2])


def _exact(text: str, answers: Sequence[str]) -> bool:
    given = plain(first_line(text))
    return bool(given) and given in {plain(answer) for answer in answers}


def _choice(text: str, answers: Sequence[str]) -> bool:
    given = chosen(text)
    return bool(given) and given in {chosen(answer) for answer in answers}


def _open(text: str, answers: Sequence[str]) -> bool:
    """Grade nothing: an open question has no right answer."""
    return False


def _regex(text: str, answers: Sequence[str]) -> bool:
    line = first_line(text)
    return any(re.search(answer, line) for answer in answers)


RULES: dict[str, Rule] = {
    "number": _number,
    "last": _last,
    "exact": _exact,
    "choice": _choice,
    "regex": _regex,
    "final": _final,
    "open": _open,
}
