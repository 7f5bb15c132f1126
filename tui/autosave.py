"""Keeps the chat in a store while it goes on, on a thread of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from textual.app import App

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.chat.store import Store
from entropix_mlx.errors import SessionError

KEEP_SECONDS = 15
"""How often a running answer is saved; one that ended is saved at once."""


class Keeper:
    """Saves what it is given, the newest state only; a failure is told once."""

    def __init__(self, app: App[None], store: Store | None) -> None:
        """Set up; without a store nothing is kept."""
        self._app = app
        self._store = store
        self._thread = ThreadPoolExecutor(1, "keeper")
        self._newest: Conversation | None = None
        self._open = ""  # the id of the chat that is marked as open
        self._failed = False

    @property
    def store(self) -> Store | None:
        """Where chats are kept, unless there was a failure."""
        return None if self._failed else self._store

    def keep(self, conversation: Conversation) -> None:
        """Save a conversation soon, if anything was asked."""
        if self.store is not None and conversation.turns:
            self._newest = conversation
            self._thread.submit(self._save)

    def close(self) -> None:
        """Wait for what is being saved, and note that the program ends as it should."""
        self._thread.shutdown()
        if self._store is not None:
            self._store.close()

    def _save(self) -> None:
        conversation, self._newest = self._newest, None
        if conversation is None or self.store is None:  # a newer state was saved in its place
            return
        try:
            self.store.save(conversation)
            if self._open != conversation.id:
                self.store.open(conversation.id)
                self._open = conversation.id
        except SessionError as error:
            self._failed = True
            told = f"this chat is not kept: {error}"
            self._app.call_later(self._app.notify, told, severity="error", markup=False)
