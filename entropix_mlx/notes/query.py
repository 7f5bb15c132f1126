"""What is looked for: the words of a question and of a sentence, without those that say little.

A question is a stranger's text to SQLite. Only its words are taken, each of them is quoted, and so
none can be an operator of the query language.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib import resources

MOST_WORDS = 32
"""Of a text that are looked for; the last ones, since those are nearest to what is asked."""
_WORD = re.compile(r"[^\W_]+")


@cache
def stop_words() -> frozenset[str]:
    """Return words that stand in any text, and so tell nothing about one."""
    file = resources.files(__package__) / "stop_words.txt"
    lines = file.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


def words(text: str) -> list[str]:
    """Return the different words of a text that are worth looking for, in their order.

    Where it has nothing but stop words, they are what it has.
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    found = list(dict.fromkeys(_WORD.findall(plain)))
    telling = [word for word in found if word not in stop_words()]
    return (telling or found)[-MOST_WORDS:]


def quoted(word: str) -> str:
    """Return a word as a string of FTS5's query language."""
    return '"' + word.replace('"', '""').replace("\0", "") + '"'


def any_of(looked_for: list[str]) -> str:
    """Return the query for passages that hold any of some words."""
    return " OR ".join(quoted(word) for word in looked_for)
