"""A folder of a user's own texts, and the full-text search for passages of it.

The texts are read once, into a table in memory. A query is a stranger's text to SQLite: only its
words are taken, and each is quoted, so that none can be an operator of the query language.

HTML is reduced to its text by one regular expression, whose every alternative ends where the text
ends. So the time grows with the length alone, whatever is left open: Beautiful Soup, lxml and
selectolax each have pages of 1 MB that take them more than 10 s.
"""

from __future__ import annotations

import html
import io
import logging
import math
import os
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock

from . import limits
from .errors import NotesError
from .files import expanded
from .records import printable
from .step import Passage, Source

MARKDOWN, TEXT = (".md", ".markdown"), (".txt", ".text", ".rst", ".org")
HTML, PDF = (".html", ".htm"), (".pdf",)
KNOWN = (*MARKDOWN, *TEXT, *HTML, *PDF)
CANDIDATES = 8  # passages of the best rank, which are compared by the words of the query they hold
LISTED_FAULTS = 5  # files that could not be read, which are named at most
MOST_WORDS = 32  # of a query; the last ones, since those are nearest to what is asked
TABLE = """CREATE VIRTUAL TABLE passages USING fts5 (
    text, heading, name, line UNINDEXED, page UNINDEXED,
    tokenize = "porter unicode61 remove_diacritics 2"
)"""
# BM25's weights of a passage's text, its section's heading and its file's name
BEST = """SELECT rowid, text, heading, name, line, page FROM passages WHERE passages MATCH ?
ORDER BY bm25(passages, 1.0, 0.5, 0.5), rowid LIMIT ?"""
STOP_WORDS = """
a about after all also am an and any are as at be been before but by can could did do does for from
had has have he her his how i if in into is it its just like me more most my no not of on one only
or other our out over please said she so some such tell than that the their them then there these
they this to too up us was we were what when where which who whom whose why will with would you your
aber als am an auch auf aus bei bis bist da das dass dem den der des die dies diese dieser doch
du ein eine einem einen einer eines er es für ich ihr im in ist ja kann mit nach nicht noch nur
ob oder sich sie sind so um und uns von vor was wer wie wir wird wo zu zum zur
au aux avec ce ces cette dans de des du elle en est et il ils je la le les leur mais ne nous on ou
où par pas plus qu que quel quelle qui sa se ses sont sur un une vous
al como con cuál da del di do dos el ella em es esta este gli ha há il la las lo los mais mi na no
non nos o para per por qué que quién se si su sua um uma un una y
"""  # of English, German, French, Spanish, Italian and Portuguese


_log = logging.getLogger(__name__)


class Unreadable(Exception):
    """Why a document cannot be read; others can be."""


class Notes:
    """The texts of a folder, as they are when it is opened.

        notes = Notes("~/notes")
        hooks = Hooks(retrieve=notes.about(question))
        for step in stream_generate(model, tokenizer, prompt, hooks=hooks):
            ...

    Any thread may use it. `faults` says by name why files were left out.

    Raises:
        NotesError: the folder cannot be read, or this Python's SQLite has no FTS5.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = expanded(folder, NotesError).absolute()
        self.files = self.passages = 0
        self.faults: dict[str, str] = {}
        self._lock = Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._database.execute(TABLE)
        except sqlite3.OperationalError as error:
            raise NotesError(f"this Python's SQLite cannot search texts: {error}") from error
        for path in _documents(self.folder):
            name = os.fsencode(path.relative_to(self.folder)).decode("utf-8", "replace")
            try:
                self._add(name, pages(path), path.suffix.lower())
                self.files += 1
            except Unreadable as error:
                self.faults[name] = str(error)
        _log.info("notes: passages %s, files %s", f"{self.passages:,}", f"{self.files:,}")
        for name, fault in list(self.faults.items())[:LISTED_FAULTS]:
            _log.info("notes: %s is left out: %s", printable(name), fault)
        if (more := len(self.faults) - LISTED_FAULTS) > 0:
            _log.info("notes: %s more files are left out", f"{more:,}")

    def _add(self, name: str, texts: list[str], suffix: str) -> None:
        for page, text in enumerate(texts, 1):
            rows = [
                (passage, heading, name, line, page if suffix in PDF else None)
                for passage, line, heading in passages(text, markdown=suffix in MARKDOWN)
            ]
            self._database.executemany("INSERT INTO passages VALUES (?, ?, ?, ?, ?)", rows)
            self.passages += len(rows)

    def about(self, question: str) -> Callable[[str], list[Passage]]:
        """Return the retrieval for an answer to a question: `best` of it and of a sentence."""
        return lambda sentence: self.best(question, sentence)

    def best(self, *texts: str) -> list[Passage]:
        """Return the passages that share most with some texts, the best first.

        BM25 for the words of all texts finds them. The score of a passage is the share of the words
        of a text that it holds, each weighted by ln(1 + passages / passages that hold it): of all
        texts, the largest.
        """
        queries = [found for text in texts if (found := words(text))]
        every = list(dict.fromkeys(word for query in queries for word in query))
        if not every:
            return []
        match = " OR ".join(f'"{word}"' for word in every)
        with self._lock:
            rows = self._database.execute(BEST, (match, CANDIDATES)).fetchall()
            holding = {word: self._holding(word) for word in every}
        weights = {w: math.log1p(self.passages / max(1, len(ids))) for w, ids in holding.items()}

        def share(row: int, query: list[str]) -> float:
            held = sum(weights[word] for word in query if row in holding[word])
            return held / sum(weights[word] for word in query)

        passages = [
            Passage(text, Source(name, line, page, heading), max(share(row, q) for q in queries))
            for row, text, heading, name, line, page in rows
        ]
        return sorted(passages, key=lambda passage: -passage.score)

    def _holding(self, word: str) -> set[int]:
        query = "SELECT rowid FROM passages WHERE passages MATCH ?"
        return {row for (row,) in self._database.execute(query, (f'"{word}"',))}


def words(text: str) -> list[str]:
    """Return the different words of a query, without stop words unless it has no others."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    found = list(dict.fromkeys(re.findall(r"[^\W_]+", plain)))
    common = set(STOP_WORDS.split())
    rare = [word for word in found if word not in common]
    return (rare or found)[-MOST_WORDS:]


def _documents(folder: Path) -> list[Path]:
    """Return the files below a folder that may hold notes.

    Hidden files and folders are skipped, and so are links: they may lead out of the folder.
    """
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise NotesError(f"cannot read the folder {folder}: {error.strerror or error}") from error
    found, seen = [], 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(parent, name) for name in sorted(names) if not name.startswith(".")]
        known = [path for path in paths if path.suffix.lower() in KNOWN]
        found += [path for path in known if path.is_file() and not path.is_symlink()]
        seen += len(folders) + len(names)
        if seen > limits.NOTE_FILES:
            most = f"more than {limits.NOTE_FILES:,} files and folders"
            raise NotesError(f"{folder} holds {most}: name a folder inside it")
    return found


def pages(path: Path) -> list[str]:
    """Return the text of a document: of a PDF file, that of each page.

    Line breaks are line feeds. A file of a kind that is not in `KNOWN` is taken for plain text.

    Raises:
        Unreadable: it is no text, larger than `NOTE_BYTES`, or may not be read.
    """
    try:
        content = limits.read_bytes(path, limits.NOTE_BYTES)
        if path.suffix.lower() in PDF:
            return _of_pdf(content)
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        text = _of_html(text) if path.suffix.lower() in HTML else text
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    except ValueError as error:  # not UTF-8, or in HTML a character of thousands of digits
        raise Unreadable(f"not a text in UTF-8: {error}") from error
    if "\0" in text:
        raise Unreadable("not a text: it holds zero bytes")
    return [text]


def _of_pdf(content: bytes) -> list[str]:
    try:
        from pypdf import PdfReader
    except ImportError:
        raise Unreadable("PDF files need pypdf: pip install '.[notes]' in the clone") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs every small fault
    try:
        read = PdfReader(io.BytesIO(content)).pages[: limits.NOTE_PAGES]
        found = [page.extract_text() for page in read]
        "".join(found).encode("utf-8")  # a damaged font may give half a surrogate pair
    except Exception as error:  # of pypdf, which raises what it likes about a damaged file
        raise Unreadable(f"not a PDF file that can be read: {type(error).__name__}") from error
    return found


_MARKUP = re.compile(
    r"""<!--.*?(?:-->|\Z)
      | <(script|style|template|noscript)\b.*?(?:(?=</\1\b)|\Z)
      | </?[a-z](?:[^=>]++|=\s*(?:"[^"]*(?:"|\Z)|'[^']*(?:'|\Z))?)*+(?:>|\Z)
      | <[!?/][^>]*(?:>|\Z)""",
    re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
"""Comments, elements that are not shown, tags with quoted values, declarations."""


def _of_html(text: str) -> str:
    lines = [html.unescape(part).strip() for part in _MARKUP.sub("\v", text).split("\v")]
    return "\n".join(filter(None, lines))


_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*)")
_UNDERLINE = re.compile(r"\s{0,3}(=+|-{3,})\s*$")
_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_MARKS = re.compile(r"^\s*(?:[-*+•]\s+|>\s?)+")
_WORD = re.compile(r"[^\s。！？]*[。！？]|[^\s。！？]+")
_ENDS = ".!?…。！？"  # of sentences


def passages(text: str, *, markdown: bool = False) -> Iterator[tuple[str, int, str]]:
    """Yield the passages of a text, the numbers of their first lines and their sections' headings.

    A passage has at most `NOTE_PASSAGE_CHARACTERS`, and so has a heading. Blank lines and headings
    end one. A longer paragraph is cut between sentences, a longer sentence between words. In
    Markdown, the marks of headings, list items and quotes are removed.
    """
    heading, fenced = "", False
    paragraph: list[tuple[int, str]] = []
    # Not `splitlines`: editors count the lines that line feeds end, and no others.
    for number, line in enumerate([*text.split("\n"), ""], 1):
        fenced ^= markdown and bool(_FENCE.match(line))
        title = _HEADING.match(line) if markdown and not fenced else None
        underlined = markdown and not fenced and paragraph and _UNDERLINE.match(line)
        if line.strip() and not title and not underlined:
            paragraph.append((number, _MARKS.sub("", line) if markdown else line))
            continue
        following = paragraph.pop()[1] if underlined else title[1] if title else heading
        for begun, passage in _joined(_joined(_words(paragraph), _ENDS)):
            yield passage, begun, heading
        paragraph.clear()
        heading = following.rstrip("# \t").strip()[: limits.NOTE_PASSAGE_CHARACTERS]


def _words(paragraph: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the words of numbered lines with the numbers, longer ones in parts."""
    most = limits.NOTE_PASSAGE_CHARACTERS
    for number, line in paragraph:
        for word in _WORD.findall(line):
            yield from ((number, word[at : at + most]) for at in range(0, len(word), most))


def _joined(parts: Iterable[tuple[int, str]], ends: str = "") -> Iterator[tuple[int, str]]:
    """Join texts by spaces up to `NOTE_PASSAGE_CHARACTERS`, none beyond one of the `ends`."""
    begun, joined = 0, ""
    for line, text in parts:
        longer = len(joined) + 1 + len(text) > limits.NOTE_PASSAGE_CHARACTERS
        if joined and (longer or joined[-1] in ends):
            yield begun, joined
            joined = ""
        begun, joined = (begun, f"{joined} {text}") if joined else (line, text)
    if joined:
        yield begun, joined
