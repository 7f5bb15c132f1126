"""Cutting a text into passages: a paragraph each, or as many of its sentences as fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..limits import NOTE_PASSAGE_CHARACTERS

_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*?)[\s#]*$")
_UNDERLINE = re.compile(r"\s{0,3}(=+|-{3,})\s*$")
_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")
_MARKS = re.compile(r"^\s*(?:[-*+•]\s+|>\s?)+")


class Piece(NamedTuple):
    """A passage and where it stands."""

    text: str
    line: int
    """Of its first word, from 1."""
    heading: str
    """That of the section; empty without one."""


def pieces(text: str, *, markdown: bool = False) -> Iterator[Piece]:
    """Yield the passages of a text, each at most `NOTE_PASSAGE_CHARACTERS` long.

    A blank line ends a passage, and so does a heading. A longer paragraph is cut between sentences
    or lines, and a longer sentence between words.

    Args:
        text: of a file.
        markdown: whether headings, list items and quotes are marked as in Markdown.
    """
    heading, fence = "", ""
    paragraph: list[tuple[int, str]] = []
    # Not `splitlines`: editors count the lines that line feeds end, and no others.
    for number, line in enumerate(text.split("\n"), 1):
        opened = _FENCE.match(line) if markdown else None
        if opened and (not fence or opened[1].startswith(fence)):
            fence = "" if fence else opened[1]
        found = _HEADING.match(line) if markdown and not fence else None
        underlined = markdown and not fence and paragraph and _UNDERLINE.match(line)
        if found or underlined or not line.strip():
            if underlined and line.strip()[0] == "=":
                heading = paragraph.pop()[1].strip()
            yield from _packed(paragraph, heading)
            paragraph = []
            heading = found[1].strip() if found else heading
            continue
        paragraph.append((number, _MARKS.sub("", line) if markdown else line))
    yield from _packed(paragraph, heading)


def _packed(paragraph: list[tuple[int, str]], heading: str) -> Iterator[Piece]:
    """Yield passages of as many sentences as fit."""
    packed, begun = "", 0
    for line, sentence in _sentences(paragraph):
        longer = f"{packed} {sentence}" if packed else sentence
        if packed and len(longer) > NOTE_PASSAGE_CHARACTERS:
            yield Piece(packed, begun, heading)
            packed = ""
            longer = sentence
        begun = begun if packed else line
        packed = longer
    if packed:
        yield Piece(packed, begun, heading)


def _sentences(paragraph: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a paragraph, each with its line; a line break ends none."""
    starts: list[tuple[int, int]] = []
    text = ""
    for number, line in paragraph:
        stripped = " ".join(line.split())
        text += " " if text else ""
        starts.append((len(text), number))
        text += stripped
    at = 0
    for sentence in _SENTENCE.split(text):
        begun = text.index(sentence, at)
        at = begun + len(sentence)
        for offset, piece in _cut(sentence):
            yield max(number for start, number in starts if start <= begun + offset), piece


def _cut(sentence: str) -> Iterator[tuple[int, str]]:
    """Yield a sentence, in pieces that end between words where it is too long."""
    begun = 0
    while begun < len(sentence):
        rest = sentence[begun : begun + NOTE_PASSAGE_CHARACTERS]
        if begun + len(rest) < len(sentence) and (space := rest.rfind(" ")) > 0:
            rest = rest[: space + 1]
        if rest.strip():
            yield begun, rest.strip()
        begun += len(rest)
