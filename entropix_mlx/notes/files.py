"""The files of a folder of notes, and their passages: paragraphs, or sentences of long ones."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from string import whitespace
from typing import NamedTuple

from .. import limits
from ..errors import NotesError
from . import formats

_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*)")
_UNDERLINE = re.compile(r"\s{0,3}(=+|-{3,})\s*$")
_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")
_MARKS = re.compile(r"^\s*(?:[-*+•]\s+|>\s?)+")


class Note(NamedTuple):
    """A file as it was when the folder was read."""

    name: str  # path relative to the folder, with slashes
    changed: int  # nanoseconds since 1970
    size: int


class Piece(NamedTuple):
    """A passage and where it stands."""

    text: str
    line: int  # of its first word, from 1; in a PDF file, on the page
    heading: str  # that of the section; empty without one
    page: int | None = None  # of a PDF file, from 1


def listed(folder: Path) -> dict[str, Note]:
    """Return the files of a folder that may hold notes, by name.

    Hidden files and folders are skipped, and so are links: they may lead out of the folder.

    Raises:
        NotesError: the folder cannot be read, or holds more files than `NOTE_FILES`.
    """
    if not folder.is_dir():
        raise NotesError(f"there is no folder {folder}: name one that holds your notes")
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise NotesError(f"cannot read the folder {folder}: {error.strerror or error}") from error
    found: dict[str, Note] = {}
    for seen, entry in enumerate(_entries(folder)):
        if seen >= limits.NOTE_FILES:
            raise NotesError(
                f"{folder} holds more than {limits.NOTE_FILES:,} files and folders: name a folder"
                " inside it"
            )
        if Path(entry.name).suffix.lower() in formats.KNOWN:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # gone meanwhile
                continue
            name = Path(entry.path).relative_to(folder).as_posix()
            if _writable(name):
                found[name] = Note(name, status.st_mtime_ns, status.st_size)
    return found


def passages(folder: Path, name: str) -> Iterator[Piece]:
    """Yield the passages of a file.

    Raises:
        Unreadable: it is no text, larger than `NOTE_BYTES`, or may not be read.
    """
    path = folder / name
    suffix = path.suffix.lower()
    for number, text in enumerate(formats.pages(path), 1):
        page = number if suffix in formats.PDF else None
        for piece in pieces(text, markdown=suffix in formats.MARKDOWN):
            yield piece._replace(page=page)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the regular files below a folder, each folder's in the order of their names."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # a folder inside that may not be read
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield entry


def _writable(name: str) -> bool:
    """Return whether a name is text that a database can hold: on Linux it may be any bytes."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def pieces(text: str, *, markdown: bool = False) -> Iterator[Piece]:
    """Yield the passages of a text, each at most `NOTE_PASSAGE_CHARACTERS` long.

    Blank lines and headings end a passage. A longer paragraph is cut between sentences, a longer
    sentence between words. In Markdown, the marks of headings, list items and quotes are removed.
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
                heading = _short(paragraph.pop()[1])
            yield from _packed(paragraph, heading)
            paragraph = []
            heading = _short(found[1].rstrip(f"#{whitespace}")) if found else heading
            continue
        paragraph.append((number, _MARKS.sub("", line) if markdown else line))
    yield from _packed(paragraph, heading)


def _short(heading: str) -> str:
    """Return a heading as long as a passage at most: each passage of its section repeats it."""
    return heading.strip()[: limits.NOTE_PASSAGE_CHARACTERS]


def _packed(paragraph: list[tuple[int, str]], heading: str) -> Iterator[Piece]:
    packed, begun = "", 0
    for line, sentence in _sentences(paragraph):
        longer = f"{packed} {sentence}" if packed else sentence
        if packed and len(longer) > limits.NOTE_PASSAGE_CHARACTERS:
            yield Piece(packed, begun, heading)
            packed = ""
            longer = sentence
        begun = begun if packed else line
        packed = longer
    if packed:
        yield Piece(packed, begun, heading)


def _sentences(paragraph: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a paragraph, each with its line; a line break ends none."""
    lines = [(number, plain) for number, line in paragraph if (plain := " ".join(line.split()))]
    starts = list(accumulate((len(line) + 1 for _, line in lines), initial=0))
    text, at = " ".join(line for _, line in lines), 0
    for sentence in _SENTENCE.split(text):
        begun = text.index(sentence, at)
        at = begun + len(sentence)
        for offset, piece in _cut(sentence):
            yield lines[bisect_right(starts, begun + offset) - 1][0], piece


def _cut(sentence: str) -> Iterator[tuple[int, str]]:
    """Yield a sentence, in pieces that end between words where it is too long."""
    begun = 0
    while begun < len(sentence):
        rest = sentence[begun : begun + limits.NOTE_PASSAGE_CHARACTERS]
        if begun + len(rest) < len(sentence) and (space := rest.rfind(" ")) > 0:
            rest = rest[: space + 1]
        if rest.strip():
            yield begun, rest.strip()
        begun += len(rest)
