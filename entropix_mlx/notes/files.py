"""The files of a folder of notes, and the passages of each."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from .. import limits
from ..errors import NotesError
from .passages import Piece, pieces

MARKDOWN = (".md", ".markdown")
TEXT = (".txt", ".text", ".rst", ".org")
PDF = (".pdf",)
NO_PDF_READER = "PDF files are read by pypdf: pip install 'entropix_mlx[notes]'"
_BINARY = "\0"


class Unreadable(Exception):
    """Why a file cannot be read; the folder's other files can be."""


class NoReader(Unreadable):
    """A package is missing: the file itself may be all right."""


class Note(NamedTuple):
    """A file as it was when the folder was looked through."""

    name: str
    """Path relative to the folder, with slashes."""
    changed: int
    """Nanoseconds since 1970."""
    size: int


class Passage(NamedTuple):
    """A piece of a file."""

    piece: Piece
    page: int | None
    """Of a PDF file, from 1; lines are counted on the page."""


def listed(folder: Path) -> dict[str, Note]:
    """Return the files of a folder that notes may be in, by name.

    Hidden files and folders are passed over, and so are links: they may lead out of the folder.

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
        if Path(entry.name).suffix.lower() in (*MARKDOWN, *TEXT, *PDF):
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # gone meanwhile
                continue
            name = Path(entry.path).relative_to(folder).as_posix()
            if _writable(name):
                found[name] = Note(name, status.st_mtime_ns, status.st_size)
    return found


def passages(folder: Path, name: str) -> Iterator[Passage]:
    """Yield the passages of a file.

    Raises:
        Unreadable: it is no text, larger than `NOTE_BYTES`, or may not be read.
    """
    path = folder / name
    suffix = path.suffix.lower()
    try:
        content = limits.read_bytes(path, limits.NOTE_BYTES)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    if suffix in PDF:
        yield from _of_pdf(content)
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("not a text in UTF-8") from None
    if _BINARY in text:
        raise Unreadable("not a text: it holds zero bytes")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for piece in pieces(text, markdown=suffix in MARKDOWN):
        yield Passage(piece, None)


def _of_pdf(content: bytes) -> Iterator[Passage]:
    try:
        from pypdf import PdfReader
    except ImportError:
        raise NoReader(NO_PDF_READER) from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells of every small fault
    try:
        for number, page in enumerate(PdfReader(BytesIO(content)).pages, 1):
            if number > limits.NOTE_PAGES:
                return
            for piece in pieces(page.extract_text()):
                yield Passage(piece, number)
    except Exception as error:  # of pypdf, which raises what it likes about a damaged file
        raise Unreadable(f"not a PDF file that can be read: {type(error).__name__}") from error


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
    """Tell whether a name is text that a database can hold: on Linux it may be any bytes."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
