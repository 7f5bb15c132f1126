"""Chats that are saved automatically: a table in one SQLite file, in the platform's folder for data
of programs.

A row holds a chat as `Conversation.save` writes it, and the texts that a list of chats shows and
searches. While a program has a chat open, the row names its process; one that does not run any more
has crashed.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import SessionError
from .conversation import Conversation

TABLE = """CREATE TABLE IF NOT EXISTS chats (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, turns INTEGER NOT NULL, text TEXT NOT NULL,
    changed REAL NOT NULL, process INTEGER, conversation TEXT NOT NULL
)"""
SAVE = """INSERT INTO chats (id, name, turns, text, changed, conversation) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, turns = excluded.turns, text = excluded.text,
    changed = excluded.changed, conversation = excluded.conversation"""


@dataclass(frozen=True)
class Card:
    """The entry of a chat in a list."""

    id: str
    name: str
    """Its title, or its first question."""
    turns: int
    text: str
    """All questions and selected answers, to search in."""
    changed: float
    """When it was saved, in seconds since 1970."""

    def has(self, words: str) -> bool:
        text = f"{self.name}\n{self.text}".casefold()
        return all(word in text for word in words.casefold().split())


class Store:
    """The chats of a file; whatever goes wrong with that is a `SessionError`.

    It may be used on any thread, and by several programs at once.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Use a file, which need not exist yet; None is the platform's."""
        import platformdirs

        platform = platformdirs.user_data_path("entropix_mlx", appauthor=False)
        self.file = file or platform / "chats.db"

    def save(self, conversation: Conversation) -> None:
        text = "\n".join(message["content"] for message in conversation.messages)
        card = (conversation.id, conversation.name, len(conversation.turns), text, time.time())
        with self._table() as table:
            table.execute(SAVE, (*card, conversation.to_json()))

    def load(self, chat: str) -> Conversation:
        with self._table() as table:
            found = table.execute("SELECT conversation FROM chats WHERE id = ?", (chat,)).fetchone()
        if found is None:
            raise SessionError(f"there is no chat {chat!r}: name one that is listed")
        conversation = Conversation.from_json(found[0], f"the chat {chat}")
        conversation.id = chat
        return conversation

    def cards(self, words: str = "") -> list[Card]:
        """Return the cards of all chats in which some words occur, the newest first; none where
        the file cannot be used."""
        query = "SELECT id, name, turns, text, changed FROM chats ORDER BY changed DESC"
        cards: list[Card] = []
        with suppress(SessionError), self._table() as table:
            cards = [Card(*row) for row in table.execute(query)]
        return [card for card in cards if card.has(words)]

    def rename(self, chat: str, title: str | None) -> None:
        """Give a chat a title; None is its first question."""
        conversation = self.load(chat)
        conversation.title = title
        self.save(conversation)

    def delete(self, chat: str) -> None:
        with self._table() as table:
            table.execute("DELETE FROM chats WHERE id = ?", (chat,))

    def open(self, chat: str) -> None:
        """Mark a chat as open in this program, in place of the one before."""
        with self._table() as table:
            table.execute("UPDATE chats SET process = NULL WHERE process = ?", (os.getpid(),))
            table.execute("UPDATE chats SET process = ? WHERE id = ?", (os.getpid(), chat))

    def close(self) -> None:
        with suppress(SessionError), self._table() as table:
            table.execute("UPDATE chats SET process = NULL WHERE process = ?", (os.getpid(),))

    def crashed(self) -> list[str]:
        """Return the ids of chats that were open in programs that died, and forget that; none where
        the file cannot be used."""
        query = "SELECT id, process FROM chats WHERE process IS NOT NULL ORDER BY changed"
        found: list[str] = []
        with suppress(SessionError), self._table() as table:
            found = [chat for chat, process in table.execute(query) if not _runs(process)]
            for chat in found:
                table.execute("UPDATE chats SET process = NULL WHERE id = ?", (chat,))
        return found

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


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        pass
    return True
