"""Chats that are saved automatically: a table in one SQLite file, in the platform's folder for data
of programs.

A row holds a turn, with the texts that a list of chats searches; so saving costs what has changed.
Row `HEAD` of a chat holds everything else. While a program has a chat open, that row names the
process: if it does not run any more, it has crashed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import SessionError
from .conversation import Conversation

HEAD = -1
TABLE = """CREATE TABLE IF NOT EXISTS turns (
    chat TEXT NOT NULL, turn INTEGER NOT NULL, text TEXT NOT NULL, record TEXT NOT NULL,
    changed REAL, process INTEGER, PRIMARY KEY (chat, turn)
) WITHOUT ROWID"""
SAVE = """INSERT INTO turns (chat, turn, text, record, changed) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET text = excluded.text, record = excluded.record,
    changed = excluded.changed"""
CARDS = """SELECT chat, max(CASE turn WHEN -1 THEN text END), max(turn) + 1,
    group_concat(text, char(10)), max(changed) AS newest
FROM turns GROUP BY chat ORDER BY newest DESC"""


@dataclass(frozen=True)
class Card:
    """The entry of a chat in a list."""

    id: str
    name: str  # its title, or its first question
    turns: int
    text: str  # the name, all questions and selected answers, to search in
    changed: float  # when it was saved, in seconds since 1970

    def has(self, words: str) -> bool:
        text = self.text.casefold()
        return all(word in text for word in words.casefold().split())


class Store:
    """The chats of a file; whatever goes wrong with it is a `SessionError`.

    It may be used on any thread, one at a time, and by several programs at once.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Use a file, which need not exist yet; None is the platform's."""
        import platformdirs

        platform = platformdirs.user_data_path("entropix_mlx", appauthor=False)
        self.file = file or platform / "chats.db"
        self._saved, self._stamp = Conversation(), 0.0  # the chat that was saved last, and when

    def save(self, conversation: Conversation) -> None:
        """Write the turns that have changed since this program saved the chat."""
        chat, now, stamp = conversation.id, conversation.snapshot(), time.time()
        newest = "SELECT changed FROM turns WHERE chat = ? AND turn = ?"
        with self._table() as table:
            found = table.execute(newest, (chat, HEAD)).fetchone()
            known = self._saved.turns if found == (self._stamp,) else []  # else others wrote it
            for number, turn in enumerate(now.turns):
                if number >= len(known) or turn != known[number]:
                    text = "\n".join(message["content"] for message in turn.messages)
                    _put(table, chat, number, text, json.dumps(turn.to_record()))
            table.execute("DELETE FROM turns WHERE chat = ? AND turn >= ?", (chat, len(now.turns)))
            _put(table, chat, HEAD, now.name, replace(now, turns=[]).to_json(), stamp)
        self._saved, self._stamp = now, stamp

    def load(self, chat: str) -> Conversation:
        with self._table() as table:
            rows = table.execute("SELECT record FROM turns WHERE chat = ? ORDER BY turn", (chat,))
            head, *turns = [record for (record,) in rows] or [None]
        if head is None:
            raise SessionError(f"there is no chat {chat!r}: name one that is listed")
        record = json.loads(head) | {"turns": [json.loads(turn) for turn in turns]}
        conversation = Conversation.of_record(record, f"the chat {chat}")
        conversation.id = chat
        return conversation

    def cards(self, words: str = "") -> list[Card]:
        """Return the cards of all chats in which some words occur, the newest first; none where
        the file cannot be used."""
        cards: list[Card] = []
        with suppress(SessionError), self._table() as table:
            cards = [Card(*row) for row in table.execute(CARDS)]
        return [card for card in cards if card.has(words)]

    def rename(self, chat: str, title: str | None) -> None:
        """Give a chat a title; None is its first question."""
        conversation = self.load(chat)
        conversation.title = title
        self.save(conversation)

    def delete(self, chat: str) -> None:
        with self._table() as table:
            table.execute("DELETE FROM turns WHERE chat = ?", (chat,))

    def open(self, chat: str) -> None:
        """Mark a chat as open in this program, in place of the one before."""
        self.close()
        with self._table() as table:
            mark = "UPDATE turns SET process = ? WHERE chat = ? AND turn = ?"
            table.execute(mark, (os.getpid(), chat, HEAD))

    def close(self) -> None:
        with suppress(SessionError), self._table() as table:
            table.execute("UPDATE turns SET process = NULL WHERE process = ?", (os.getpid(),))

    def crashed(self) -> list[str]:
        """Return the ids of chats that were open in programs that died, and forget that; none where
        the file cannot be used."""
        query = "SELECT chat, process FROM turns WHERE process IS NOT NULL ORDER BY changed"
        crashed: list[str] = []
        with suppress(SessionError), self._table() as table:
            crashed = [chat for chat, process in table.execute(query) if not _runs(process)]
            for chat in crashed:
                table.execute("UPDATE turns SET process = NULL WHERE chat = ?", (chat,))
        return crashed

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.file.touch(mode=0o600)
            with closing(sqlite3.connect(self.file)) as connection, connection:
                connection.execute(TABLE)
                yield connection
        except (OSError, sqlite3.Error) as error:
            raise SessionError(f"the chats in {self.file} cannot be used: {error}") from error


def _put(
    table: sqlite3.Connection,
    chat: str,
    turn: int,
    text: str,
    record: str,
    changed: float | None = None,
) -> None:
    """Write a row, with "?" for halves of surrogate pairs, which SQLite does not take."""
    texts = (value.encode("utf-8", "replace").decode() for value in (text, record))
    table.execute(SAVE, (chat, turn, *texts, changed))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        pass
    return True
