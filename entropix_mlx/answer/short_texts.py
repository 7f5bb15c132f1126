"""Normal forms of short texts, by which two answers that say the same can be told from two that do
not."""

from __future__ import annotations

import json
import re
import unicodedata

LONGEST = 200
"""Characters of an answer that can be compared as a text: longer ones hardly ever agree."""
LONGEST_JSON = 10_000
ARTICLES = (["the"], ["a"], ["an"])
FENCE = "```"
EXACT_DIGITS = 15  # that a float holds exactly

_NUMBER = re.compile(r"[-−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
_EQUATION = re.compile(r"^[\s\d.,+*/x×÷()−-]+=")
_CHOICE = re.compile(r"^\(?([A-Za-z])(?:\)|[.:]?$)")
_HYPHEN = re.compile(r"(?<=\w)-(?=\w)")
_QUOTES = " \t\"'*`“”‘’"


def numbers(text: str) -> list[str]:
    """Return the numbers in a text, plainly written."""
    return [plain_number(found) for found in _NUMBER.findall(text)]


def plain_number(number: str) -> str:
    """Return a number without what sets thousands off, and with an ASCII sign."""
    value = float(number.replace(",", "").replace("−", "-"))
    return f"{value + 0.0:.{EXACT_DIGITS}g}"  # not "-0"


def right_hand_side(line: str) -> str:
    """Return what follows the equals sign of a line that repeats a sum, or the line."""
    repeated = _EQUATION.match(line)
    return line[repeated.end() :] if repeated else line


def bare(text: str) -> str:
    """Return a text without case, accents, and quotes around it."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    kept = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return kept.strip(_QUOTES)


def bare_words(text: str) -> str:
    """Return the words of a bare text without an article before them."""
    joined = text.replace("'", "").replace("’", "").strip(_QUOTES)
    words = _HYPHEN.sub(" ", joined).split()
    return " ".join(words[1:] if words[:1] in ARTICLES else words)


def comparable(text: str) -> str | None:
    """Return what is equal for two answers that say the same; None for a text too long to compare.

    JSON is compared by its values, a choice by its letter, a sum by its result; all other texts by
    their words and numbers. A text that says nothing is empty.
    """
    text = text.strip()
    if values := _json_values(text):
        return values
    if len(text) > LONGEST:
        return None
    if choice := _CHOICE.match(text):
        return choice[1].upper()
    plain = _NUMBER.sub(_distinct_number, bare(right_hand_side(text)))
    return bare_words(" ".join(plain.split()).rstrip(".!?,;:"))


def _json_values(text: str) -> str:
    """Return the object or list that a text, or a block of code, writes in JSON, in one form; empty
    without one."""
    if text.startswith(FENCE) and text.endswith(FENCE):
        text = text.partition("\n")[2].removesuffix(FENCE).strip()
    if text[:1] not in ("{", "[") or len(text) > LONGEST_JSON:
        return ""
    try:
        return json.dumps(json.loads(text.casefold(), parse_int=float), sort_keys=True)
    except (ValueError, RecursionError):  # also nested too deeply
        return ""


def _distinct_number(found: re.Match[str]) -> str:
    """Return a number plainly written; one of more digits than a float holds, as it stands."""
    return plain_number(found[0]) if len(found[0]) <= EXACT_DIGITS else found[0]
