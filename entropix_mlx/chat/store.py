"""Chats that are saved automatically, in the platform's folder for data of programs.

Each chat is a file ``ID.json`` as `Conversation.save` writes it, which can be copied and opened
like any other. Beside it, ``ID.card`` holds the texts that a list of chats shows and searches:
reading all conversations would take seconds. A card that is missing, damaged or older than its chat
is made again. While a program has a chat open, ``open/PID`` names it; a mark whose program does not
run is left from a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import limits
from ..errors import SessionError
from ..files import write_whole, writing
from ..records import from_record
from .conversation import Conversation

CHAT, CARD = ".json", ".card"


@dataclass(frozen=True)
class Card:
    """The entry of a chat in a list."""

    id: str
    name: str
    """Its title, or its first question."""
    turns: int
    text: str
    """All questions and selected answers, to search in."""
    changed: float = 0.0
    """When it was saved, in seconds since 1970."""

    def has(self, words: str) -> bool:
        text = f"{self.name}\n{self.text}".casefold()
        return all(word in text for word in words.casefold().split())


class Store:
    """A folder of chats; what cannot be read or written raises a `SessionError`."""

    def __init__(self, folder: Path | None = None) -> None:
        """Use a folder, which need not exist yet; None is the platform's."""
        import platformdirs

        platform = platformdirs.user_data_path("entropix_mlx", appauthor=False)
        self.folder = folder or platform / "chats"

    def save(self, conversation: Conversation) -> None:
        path = self._path(conversation.id)
        with writing(path, SessionError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        conversation.save(path)
        self._write_card(conversation)

    def load(self, chat: str) -> Conversation:
        conversation = Conversation.load(self._path(chat))
        conversation.id = chat
        return conversation

    def cards(self, words: str = "") -> list[Card]:
        """Return the cards of all chats in which some words occur, the newest first.

        Chats that cannot be read are passed over.
        """
        found = [card for path in self.folder.glob(f"*{CHAT}") if (card := self._card(path))]
        return sorted(filter(lambda c: c.has(words), found), key=lambda c: c.changed, reverse=True)

    def rename(self, chat: str, title: str | None) -> None:
        """Give a chat a title; None is its first question."""
        conversation = self.load(chat)
        conversation.title = title
        self.save(conversation)

    def delete(self, chat: str) -> None:
        with writing(self._path(chat), SessionError):
            self._path(chat).unlink(missing_ok=True)
            self._path(chat, CARD).unlink(missing_ok=True)

    def open(self, chat: str) -> None:
        """Mark a chat as open in this program, in place of the one before."""
        mark = self._mark(os.getpid())
        with writing(mark, SessionError):
            mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(mark, chat)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._mark(os.getpid()).unlink(missing_ok=True)

    def crashed(self) -> list[str]:
        """Return the ids of chats that were open in programs that died, and forget that."""
        found = []
        for mark in (self.folder / "open").glob("*"):
            if mark.name.isdecimal() and not _runs(int(mark.name)):
                with contextlib.suppress(OSError, ValueError, SessionError):
                    chat = limits.read_text(mark, limits.CONFIGURATION_BYTES)
                    mark.unlink()
                    found += [chat] if self._path(chat).exists() else []
        return found

    def _mark(self, process: int) -> Path:
        return self.folder / "open" / str(process)

    def _path(self, chat: str, suffix: str = CHAT) -> Path:
        if not chat.replace("-", "").isalnum():
            raise SessionError(f"{chat!r} is not the id of a chat: name one that is listed")
        return self.folder / f"{chat}{suffix}"

    def _card(self, path: Path) -> Card | None:
        card = path.with_suffix(CARD)
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime
            try:
                if card.stat().st_mtime < changed:
                    raise ValueError("an older state of the chat")
                record = json.loads(limits.read_text(card, limits.CONVERSATION_BYTES))
                return from_record(Card, record | {"id": path.stem, "changed": changed})
            except (OSError, ValueError, TypeError, RecursionError):
                with contextlib.suppress(SessionError):
                    return self._write_card(self.load(path.stem))
        return None

    def _write_card(self, conversation: Conversation) -> Card:
        path, card = self._path(conversation.id), self._path(conversation.id, CARD)
        text = "\n".join(message["content"] for message in conversation.messages)
        changed = path.stat().st_mtime
        made = Card(conversation.id, conversation.name, len(conversation.turns), text, changed)
        with writing(card, SessionError):
            write_whole(card, json.dumps(asdict(made), ensure_ascii=False) + "\n")
        return made


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        pass
    return True
