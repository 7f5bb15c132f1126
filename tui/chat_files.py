"""Chats in files: saved while they go on; opened, saved and exported where the user asks for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App
from textual.widgets import Input

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.chat.store import Store
from entropix_mlx.errors import EntropixError, SessionError
from entropix_mlx.files import expanded, write_whole
from entropix_mlx.traces.share import share
from entropix_mlx.traces.trace import Header, Trace

from .backend_link import BackendLink
from .screens.dialogs import ConfirmDialog, SaveDialog, TextDialog
from .screens.pickers import ChatList, ChatPane
from .workspace import Workspace

if TYPE_CHECKING:
    from entropix_mlx.chat.base import ChatSession

KINDS = {
    ".json": "the chat, to go on with",
    ".md": "the chat as Markdown",
    ".jsonl": "the answer as a trace",
    ".html": "the answer as a report for a browser",
    ".png": "the answer as a picture, 1200×630",
    ".svg": "the same picture, as text that scales",
}
SAVE_SECONDS = 15
"""How often a running answer is saved; one that ended is saved at once."""


class AutoSave:
    """Saves the newest state of a chat, on a thread of its own; reports a failure once."""

    def __init__(self, app: App[None], store: Store | None) -> None:
        self._app = app
        self._store = store
        self._thread = ThreadPoolExecutor(1, "autosave")
        self._newest: Conversation | None = None
        self._open = ""  # the id of the chat that is marked as open
        self._failed = False

    @property
    def store(self) -> Store | None:
        """The saved chats; None if there are none to be, or after a failure."""
        return None if self._failed else self._store

    def save(self, conversation: Conversation) -> None:
        if self.store is not None and conversation.turns:
            self._newest = conversation
            self._thread.submit(self._save)

    async def saved(self) -> None:
        """Wait for what is being saved."""
        await asyncio.wrap_future(self._thread.submit(lambda: None))

    def close(self, crashed: bool) -> None:
        """Wait for what is being saved; after a crash, the next start offers the open chat."""
        self._thread.shutdown()
        if self._store is not None and not crashed:
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
            message = f"this chat is not saved: {error}"
            self._app.call_later(self._app.notify, message, severity="error", markup=False)


class Exports:
    """Saves what a workspace shows, with the dialogs for it."""

    def __init__(self, app: App[None], workspace: Workspace) -> None:
        self._app = app
        self._workspace = workspace
        self.header: Header | None = None
        """How the trace begins that is shown; None in a chat."""

    async def ask_where_to_save(self) -> None:
        if self._workspace.asked_anything():
            await self._ask_path(SaveDialog(_free_name(), KINDS), self.save)

    def save(self, path: str) -> None:
        """Save under a path that the user typed; ask before that replaces a file."""
        if not path or not self._workspace.asked_anything():
            return
        try:
            file = expanded(path, SessionError)
            exists = file.is_file()
        except EntropixError as error:
            self._report(f"cannot save {path}: {error}")
            return
        if not exists:
            self._write(file, path)
            return
        dialog = ConfirmDialog(f"There is a file {path} already.", "replaces it")
        self._app.push_screen(dialog, lambda yes: self._write(file, path) if yes else None)

    async def _ask_path(self, dialog: TextDialog, then: Callable[[str], None]) -> None:
        """Ask for a line; return when the field is there, since the keys that follow are for it."""
        await self._app.push_screen(dialog, lambda line: then(line or ""))
        dialog.set_focus(dialog.query_one(Input))

    def _write(self, file: Path, path: str) -> None:
        try:
            self._export(file)
        except (EntropixError, OSError) as error:
            self._report(f"cannot save {path}: {error}")
        else:
            self._app.notify(f"saved {path}", markup=False)

    def _export(self, path: Path) -> None:
        """Write the conversation, or its answer with the cursor, as the suffix says.

        Raises:
            SessionError, TraceError, OutputError, OSError: the file cannot be written, or has
                another suffix.
        """
        conversation = self._workspace.conversation
        if path.suffix not in KINDS:
            raise SessionError(
                f"a file {path.suffix or 'without a suffix'}: write {', '.join(KINDS)}"
            )
        if path.suffix == ".json":
            conversation.save(path)
        elif path.suffix == ".md":
            write_whole(path, conversation.to_markdown())
        else:
            share(self._answer(), path)

    def _answer(self) -> Trace:
        """Return the answer with the cursor, or else the last one."""
        workspace, status = self._workspace, self._workspace.status
        turns = workspace.conversation.turns
        turn = min(workspace.transcript.turn, len(turns) - 1) % len(turns)
        if not turns[turn].answers:
            raise SessionError("there is no answer yet: wait for its first token")
        answer, last = turns[turn].answer, turn == len(turns) - 1
        header = self.header or Header(
            model=status.model,
            sampler=status.sampler,
            profile=workspace.profile,
            seed=answer.seed,
            messages=workspace.conversation.until(turn).prompt_messages,
            context_length=status.context_length,
            prompt_tokens=max(0, status.context_used - len(answer.steps)) if last else 0,
        )
        return Trace(header, answer.steps, {})

    def _report(self, message: str) -> None:
        self._app.notify(message, severity="error", markup=False)


class ChatFiles(Exports):
    """Also opens the chats of a workspace, and saves them while they go on."""

    def __init__(
        self, app: App[None], workspace: Workspace, link: BackendLink, store: Store | None
    ) -> None:
        super().__init__(app, workspace)
        self._link = link
        self.autosave = AutoSave(app, store)

    async def ask_what_to_open(self) -> None:
        await self._ask_path(TextDialog("Open a saved chat", "chat.json"), self.open)

    def open(self, path: str) -> None:
        """Open a saved chat in place of this one, which stays in the list if chats are saved."""
        if path:
            self._link.interrupt()
            self._link.submit(lambda session, _: session.load(expanded(path, SessionError)))

    def list_chats(self) -> None:
        store = self.autosave.store
        if store is None:
            self._app.notify("chats are not saved with --no-save or --demo", severity="warning")
            return
        self.autosave.save(self._workspace.conversation)
        open_id = self._workspace.conversation.id
        self._app.push_screen(ChatList(store, open_id), self.open_saved)

    def fill(self, pane: ChatPane | None) -> None:
        """List the chats in the pane, if it is on the screen, once the newest state is saved."""
        store = self.autosave.store
        if pane is None or store is None or not (pane.is_attached and pane.display):
            return
        current = self._workspace.conversation.id

        async def read() -> None:
            await self.autosave.saved()
            await pane.read(store, current)

        pane.call_later(read)  # on its own queue: the screen does not wait

    def offer_crashed(self) -> None:
        """Offer to reopen a chat that was open when the program crashed."""
        store = self.autosave.store
        crashed = store.crashed() if store else []
        if crashed:
            dialog = ConfirmDialog(
                "The program ended unexpectedly while a chat was open.", "reopens it"
            )
            self._app.push_screen(dialog, lambda yes: self.open_saved(crashed[-1]) if yes else None)

    def rename(self, title: str) -> None:
        """Give this chat a title; an empty one takes it away."""

        def job(session: ChatSession, _: object) -> None:
            session.conversation.title = title or None

        self._link.submit(job)

    def open_saved(self, chat: str | None) -> None:
        store = self.autosave.store
        if chat is None or store is None or chat == self._workspace.conversation.id:
            return

        def resume(session: ChatSession, _: object) -> None:
            session.resume(store.load(chat))

        self._link.interrupt()
        self._link.submit(resume)


def _free_name() -> str:
    """Return a name that no file of any kind has here: chat.json, chat-2.json, …"""
    names = itertools.chain(["chat"], (f"chat-{number}" for number in itertools.count(2)))
    free = (name for name in names if not any(Path(name + suffix).exists() for suffix in KINDS))
    return f"{next(free)}.json"
