"""A folder of a user's own texts, and the full-text search for passages of it.

The index is an SQLite database in the user's cache folder. Only files whose time or size changed
are read again. Each is written in a transaction of its own, so a reader, another process that
updates the same index, or an interrupt never sees half of one.

A query is a stranger's text to SQLite. Only its words are taken, and each of them is quoted, so
none can be an operator of the query language.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from ..errors import NotesError
from ..files import expanded
from ..step import Passage, Source
from . import files, formats
from .files import Note

SCHEMA = 1  # of the database; one of another number is made anew
SECONDS_TO_WAIT = 30  # for another process that writes the same index
CANDIDATES = 8  # passages of the best rank, which are compared by the words of the query they hold
MOST_WORDS = 32  # of a query; the last ones, since those are nearest to what is asked
TABLES = """
CREATE TABLE notes (
    id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, changed INTEGER, size INTEGER, fault TEXT
);
CREATE TABLE places (
    id INTEGER PRIMARY KEY, note INTEGER NOT NULL, line INTEGER, page INTEGER, heading TEXT
);
CREATE INDEX places_of_notes ON places (note);
CREATE VIRTUAL TABLE passages USING fts5 (
    text, heading, name, tokenize = "porter unicode61 remove_diacritics 2"
);
"""
_WEIGHTS = "1.0, 0.5, 0.5"  # BM25's of a passage's text, its section's heading and its file's name
_WORD = re.compile(r"[^\W_]+")


def default_folder() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("entropix_mlx", appauthor=False) / "notes"


class Notes:
    """The texts of a folder.

        notes = Notes("~/notes")
        for step in stream_generate(model, tokenizer, prompt, retrieve=notes.about(question)):
            ...

    Any thread may use it: each use opens the database anew.
    """

    def __init__(self, folder: str | Path, *, cache: Path | None = None) -> None:
        """Read what is new in a folder; the first time, all of it.

        Args:
            folder: with Markdown files, plain texts and, where pypdf is installed, PDF files.
            cache: the folder of all indexes; None is `default_folder`.

        Raises:
            NotesError: the folder cannot be read, or the index not be written.
        """
        self.folder = expanded(folder, NotesError).absolute()
        key = hashlib.sha256(str(self.folder).encode("utf-8", "surrogateescape")).hexdigest()
        self._path = (default_folder() if cache is None else cache) / f"{key[:32]}.sqlite"
        self.files = self.passages = 0  # how many files were read, and their passages
        self.faults: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what changed in the folder since the last time."""
        now = files.listed(self.folder)
        try:
            self._update(now)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            self._path.unlink(missing_ok=True)  # damaged: it is only a cache
            self._update(now)
        with self._opened() as database:
            self.files = _count(database, "SELECT count(*) FROM notes WHERE fault = ''")
            self.passages = _count(database, "SELECT count(*) FROM places")
            faults = "SELECT name, fault FROM notes WHERE fault <> '' ORDER BY name"
            self.faults = dict(database.execute(faults).fetchall())

    def about(self, question: str) -> Callable[[str], list[Passage]]:
        """Return the retrieval for an answer to a question.

        It is called with a sentence of the answer, and returns or raises what `best` does.
        """
        return lambda sentence: self.best(question, sentence)

    def best(self, *texts: str) -> list[Passage]:
        """Return the passages that share most with some texts, the best first.

        BM25 for the words of all texts finds them; the score is `_share`.

        Raises:
            NotesError: the index cannot be read.
        """
        queries = [found for text in texts if (found := words(text))]
        every = list(dict.fromkeys(word for query in queries for word in query))
        if not every:
            return []
        with self._opened() as database:
            database.execute("BEGIN")  # what another process changes meanwhile is not seen
            rows = database.execute(
                f"SELECT rowid FROM passages WHERE passages MATCH ?"
                f" ORDER BY bm25(passages, {_WEIGHTS}), rowid LIMIT ?",
                (" OR ".join(map(_quoted, every)), CANDIDATES),
            )
            ranked = [row[0] for row in rows]
            holding = {word: _holding(database, word, ranked) for word in every}
            weights = _weights(database, every)
            scores = {row: _share(row, queries, holding, weights) for row in ranked}
            passages = [_passage(database, row, score) for row, score in scores.items()]
        return sorted(passages, key=lambda passage: -passage.score)

    def _update(self, now: dict[str, Note]) -> None:
        with self._opened() as database:
            known = {
                name: (Note(name, changed, size), fault)
                for name, changed, size, fault in database.execute(
                    "SELECT name, changed, size, fault FROM notes"
                )
            }
            for name in known.keys() - now.keys():
                _replace(database, name, None, [])
            for name, note in now.items():
                before, fault = known.get(name, (None, ""))
                if before != note or (fault or "").endswith(formats.TO_INSTALL):
                    self._read(database, note)

    def _read(self, database: sqlite3.Connection, note: Note) -> None:
        fault = ""
        try:
            found = list(files.passages(self.folder, note.name))
        except formats.Unreadable as error:
            found, fault = [], str(error)
        _replace(database, note.name, (note.changed, note.size, fault), found)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the database, or raise a NotesError; one of another version is made anew."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            database = sqlite3.connect(
                self._path, timeout=SECONDS_TO_WAIT, isolation_level=None, check_same_thread=False
            )
            with contextlib.closing(database):
                _prepare(database)
                yield database
        except (OSError, sqlite3.OperationalError) as error:
            if "fts5" in str(error):
                raise NotesError(
                    "this Python's SQLite cannot search texts (FTS5 is missing): use a Python from"
                    " python.org, Homebrew, uv or your distribution"
                ) from error
            raise NotesError(
                f"cannot keep an index of {self.folder} in {self._path}: {error}"
            ) from error


def words(text: str) -> list[str]:
    """Return the different words of a query in their order, without stop words.

    Where it has nothing but stop words, they are the query.
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    found = list(dict.fromkeys(_WORD.findall(plain)))
    rare = [word for word in found if word not in stop_words()]
    return (rare or found)[-MOST_WORDS:]


@cache
def stop_words() -> frozenset[str]:
    file = resources.files(__package__) / "stop_words.txt"
    lines = file.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""').replace("\0", "") + '"'


def _prepare(database: sqlite3.Connection) -> None:
    if _count(database, "PRAGMA user_version") == SCHEMA:
        return
    with _writing(database):
        if _count(database, "PRAGMA user_version") == SCHEMA:
            return  # another process was faster
        for table in ("passages", "places", "notes"):
            database.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in TABLES.split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {SCHEMA}")


@contextlib.contextmanager
def _writing(database: sqlite3.Connection) -> Iterator[None]:
    """Do all of something in one transaction, or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _replace(
    database: sqlite3.Connection,
    name: str,
    state: tuple[int, int, str] | None,
    found: Iterable[files.Piece],
) -> None:
    """Replace what is known of a file by what was read of it; None: it is gone."""
    with _writing(database):
        row = database.execute("SELECT id FROM notes WHERE name = ?", (name,)).fetchone()
        if row is not None:
            database.execute(
                "DELETE FROM passages WHERE rowid IN (SELECT id FROM places WHERE note = ?)", row
            )
            database.execute("DELETE FROM places WHERE note = ?", row)
            database.execute("DELETE FROM notes WHERE id = ?", row)
        if state is None:
            return
        note = database.execute(
            "INSERT INTO notes (name, changed, size, fault) VALUES (?, ?, ?, ?)", (name, *state)
        ).lastrowid
        for text, line, heading, page in found:
            place = database.execute(
                "INSERT INTO places (note, line, page, heading) VALUES (?, ?, ?, ?)",
                (note, line, page, heading),
            ).lastrowid
            database.execute(
                "INSERT INTO passages (rowid, text, heading, name) VALUES (?, ?, ?, ?)",
                (place, text, heading, name),
            )


def _count(database: sqlite3.Connection, statement: str, *values: str) -> int:
    return int(database.execute(statement, values).fetchone()[0])


def _holding(database: sqlite3.Connection, word: str, rows: Sequence[int]) -> set[int]:
    if not rows:
        return set()
    marks = ", ".join("?" * len(rows))
    found = database.execute(
        f"SELECT rowid FROM passages WHERE rowid IN ({marks}) AND passages MATCH ?",
        (*rows, _quoted(word)),
    )
    return {row[0] for row in found}


def _weights(database: sqlite3.Connection, every: Sequence[str]) -> dict[str, float]:
    """Return the weight of each word: ln(1 + passages / passages that hold it)."""
    passages = _count(database, "SELECT count(*) FROM places")
    holding = "SELECT count(*) FROM passages WHERE passages MATCH ?"
    counted = {word: _count(database, holding, _quoted(word)) for word in every}
    return {word: math.log1p(passages / max(1, count)) for word, count in counted.items()}


def _share(
    row: int,
    queries: Sequence[Sequence[str]],
    holding: dict[str, set[int]],
    weights: dict[str, float],
) -> float:
    """Return the share of the words of the text that a passage covers best."""
    return max(
        sum(weights[word] for word in query if row in holding[word])
        / sum(weights[word] for word in query)
        for query in queries
    )


def _passage(database: sqlite3.Connection, row: int, score: float) -> Passage:
    text, name, line, page, heading = database.execute(
        "SELECT text, name, line, page, places.heading FROM passages"
        " JOIN places ON places.id = passages.rowid WHERE passages.rowid = ?",
        (row,),
    ).fetchone()
    return Passage(text, Source(name, line, page, heading), score)
