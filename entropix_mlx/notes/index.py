"""The index of a folder of notes: a full-text search of SQLite's, kept in the user's cache folder.

It is made when the folder is first used. After that only files whose time or size changed are read
again, and those that are gone are forgotten. Each file is written in a transaction of its own, so a
reader, another process that updates the same index, or an interrupt never sees half of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import NotesError
from . import files, query
from .files import Note

SCHEMA = 1
"""Of the database; one of another number is made anew."""
SECONDS_TO_WAIT = 30
"""For another process that writes the same index."""
CANDIDATES = 8
"""Passages of the best rank that are compared by the words that they share with a query."""
_TABLES = """
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
_WEIGHTS = "1.0, 0.5, 0.5"
"""BM25's of a passage's text, its section's heading and its file's name."""


class Found(NamedTuple):
    """A passage that was found."""

    text: str
    name: str
    """Of its file, relative to the folder."""
    line: int
    page: int | None
    heading: str
    score: float
    """Share of what was looked for, weighted by how rare each word is, from 0 to 1."""


def default_folder() -> Path:
    """Return where indexes are kept unless somebody says otherwise."""
    import platformdirs

    return platformdirs.user_cache_path("entropix_mlx", appauthor=False) / "notes"


class Index:
    """The index of one folder. Each use opens the database anew, so any thread may use it."""

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        """Use the index of a folder, which is made by `update`.

        Args:
            folder: of the notes.
            cache: where indexes are kept; None is `default_folder`.
        """
        self.folder = folder.absolute()
        cache = default_folder() if cache is None else cache
        key = hashlib.sha256(str(self.folder).encode("utf-8", "surrogateescape")).hexdigest()
        self.path = cache / f"{key[:32]}.sqlite"

    def update(self) -> None:
        """Read what changed in the folder since the last time.

        Raises:
            NotesError: the folder cannot be read, or the index not written.
        """
        now = files.listed(self.folder)
        try:
            self._update(now)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            self.path.unlink(missing_ok=True)  # damaged: it is only a cache
            self._update(now)

    def faults(self) -> dict[str, str]:
        """Return the files that could not be read, with the reasons."""
        with self._opened() as database:
            rows = database.execute("SELECT name, fault FROM notes WHERE fault <> '' ORDER BY name")
            return dict(rows.fetchall())

    def size(self) -> tuple[int, int]:
        """Return the numbers of files that were read, and of their passages."""
        with self._opened() as database:
            read = database.execute("SELECT count(*) FROM notes WHERE fault = ''").fetchone()[0]
            return read, database.execute("SELECT count(*) FROM places").fetchone()[0]

    def best(self, *texts: str) -> list[Found]:
        """Return the passages that hold most of what some texts are about, the best first.

        They are found by BM25 for the words of all texts. The score of a passage is the share of
        the words of the text that it covers best.
        """
        looked_for = [told for text in texts if (told := query.words(text))]
        every = list(dict.fromkeys(word for listed in looked_for for word in listed))
        if not every:
            return []
        with self._opened() as database:
            database.execute("BEGIN")  # what another process changes meanwhile is not seen
            rows = database.execute(
                f"SELECT rowid FROM passages WHERE passages MATCH ?"
                f" ORDER BY bm25(passages, {_WEIGHTS}), rowid LIMIT ?",
                (query.any_of(every), CANDIDATES),
            )
            ranked = [row[0] for row in rows]
            holding = {word: _holding(database, word, ranked) for word in every}
            weights = _weights(database, every)
            found = [
                _found(database, row, _share(row, looked_for, holding, weights)) for row in ranked
            ]
        return sorted(found, key=lambda passage: -passage.score)

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
                if before != note or fault == files.NO_PDF_READER:
                    self._read(database, note)

    def _read(self, database: sqlite3.Connection, note: Note) -> None:
        fault = ""
        try:
            found = list(files.passages(self.folder, note.name))
        except files.Unreadable as error:
            found, fault = [], str(error)
        _replace(database, note.name, (note.changed, note.size, fault), found)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the database; it is made where there is none, or one of another version.

        Raises:
            NotesError: that is not possible.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            database = sqlite3.connect(
                self.path, timeout=SECONDS_TO_WAIT, isolation_level=None, check_same_thread=False
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
                f"cannot keep an index of {self.folder} in {self.path}: {error}"
            ) from error


def _prepare(database: sqlite3.Connection) -> None:
    """Make the tables unless they are there."""
    if database.execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
        return
    with _writing(database):
        if database.execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
            return  # another process was faster
        for table in ("passages", "places", "notes"):
            database.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in _TABLES.split(";"):
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
    found: Iterable[files.Passage],
) -> None:
    """Put what was read of a file in the place of what is known of it; None: it is gone."""
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
        for (text, line, heading), page in found:
            place = database.execute(
                "INSERT INTO places (note, line, page, heading) VALUES (?, ?, ?, ?)",
                (note, line, page, heading),
            ).lastrowid
            database.execute(
                "INSERT INTO passages (rowid, text, heading, name) VALUES (?, ?, ?, ?)",
                (place, text, heading, name),
            )


def _holding(database: sqlite3.Connection, word: str, rows: Sequence[int]) -> set[int]:
    """Return which of some passages hold a word."""
    if not rows:
        return set()
    marks = ", ".join("?" * len(rows))
    found = database.execute(
        f"SELECT rowid FROM passages WHERE rowid IN ({marks}) AND passages MATCH ?",
        (*rows, query.quoted(word)),
    )
    return {row[0] for row in found}


def _weights(database: sqlite3.Connection, looked_for: Sequence[str]) -> dict[str, float]:
    """Return how much each word tells: ln(1 + passages / passages that hold it)."""
    every = database.execute("SELECT count(*) FROM places").fetchone()[0]
    counted = {
        word: database.execute(
            "SELECT count(*) FROM passages WHERE passages MATCH ?", (query.quoted(word),)
        ).fetchone()[0]
        for word in looked_for
    }
    return {word: math.log1p(every / max(1, count)) for word, count in counted.items()}


def _share(
    row: int,
    looked_for: Sequence[Sequence[str]],
    holding: dict[str, set[int]],
    weights: dict[str, float],
) -> float:
    """Return the share of the words of the text that a passage covers best."""
    return max(
        sum(weights[word] for word in listed if row in holding[word])
        / sum(weights[word] for word in listed)
        for listed in looked_for
    )


def _found(database: sqlite3.Connection, row: int, score: float) -> Found:
    text, name, line, page, heading = database.execute(
        "SELECT text, name, line, page, places.heading FROM passages"
        " JOIN places ON places.id = passages.rowid WHERE passages.rowid = ?",
        (row,),
    ).fetchone()
    return Found(text, name, line, page, heading, score)
