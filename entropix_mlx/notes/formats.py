"""The text of documents that people keep: plain text, Markdown, HTML and PDF files."""

from __future__ import annotations

import logging
from io import BytesIO
from pathlib import Path

from .. import limits
from ..errors import first_line

MARKDOWN = (".md", ".markdown")
TEXT = (".txt", ".text", ".rst", ".org")
HTML = (".html", ".htm")
PDF = (".pdf",)
KNOWN = (*MARKDOWN, *TEXT, *HTML, *PDF)
TO_INSTALL = "pip install 'entropix_mlx[notes]'"
"""How the message ends where the package that reads a kind of document is missing."""
_BINARY = "\0"
_UNSEEN = ("script", "style", "template", "noscript")


class Unreadable(Exception):
    """Why a document cannot be read; others can be."""


def pages(path: Path) -> list[str]:
    """Return the text of a document: of a PDF file, that of each page.

    Line breaks are line feeds. A file of a kind that is not in `KNOWN` is taken for plain text.

    Raises:
        Unreadable: it is no text, larger than `NOTE_BYTES`, or may not be read.
    """
    try:
        content = limits.read_bytes(path, limits.NOTE_BYTES)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    suffix = path.suffix.lower()
    if suffix in PDF:
        return _of_pdf(content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("not a text in UTF-8") from None
    if _BINARY in text:
        raise Unreadable("not a text: it holds zero bytes")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return [_of_html(text) if suffix in HTML else text]


def _of_html(text: str) -> str:
    try:
        from bs4 import BeautifulSoup
    except ImportError:
        raise Unreadable(f"HTML files are read by Beautiful Soup: {TO_INSTALL}") from None
    try:
        page = BeautifulSoup(text, "html.parser")
        for hidden in page(_UNSEEN):
            hidden.decompose()
        return str(page.get_text("\n", strip=True))
    except Exception as error:  # a page may be nested more deeply than its parser goes
        raise Unreadable(f"not HTML that can be read: {first_line(error)}") from error


def _of_pdf(content: bytes) -> list[str]:
    try:
        from pypdf import PdfReader
    except ImportError:
        raise Unreadable(f"PDF files are read by pypdf: {TO_INSTALL}") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs every small fault
    found = []
    try:
        for page in PdfReader(BytesIO(content)).pages[: limits.NOTE_PAGES]:
            text = page.extract_text()
            text.encode("utf-8")  # a damaged font may give half a surrogate pair
            found.append(text)
    except Exception as error:  # of pypdf, which raises what it likes about a damaged file
        raise Unreadable(f"not a PDF file that can be read: {type(error).__name__}") from error
    return found
