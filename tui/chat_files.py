"""Chats in files: saved while they go on; opened, saved and exported where the user asks for it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App
from textual.content import Content
from textual.widgets import Input

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.chat.store import Store
from entropix_mlx.errors import EntropixError, SessionError
from entropix_mlx.files import expanded, write_whole
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.writing import write_profile
from entropix_mlx.traces.page import render
from entropix_mlx.traces.trace import Header, Trace, write_trace

from .backend_link import BackendLink
from .screens.choices import ChatList
from .screens.dialogs import ConfirmDialog, TextDialog
from .screens.picker import Picker, PickerOption
from .workspace import Workspace

if TYPE_CHECKING:
    from entropix_mlx.chat.session import ChatSession

KINDS = {
    ".json": "the chat, to go on with",
    ".md": "the chat as Markdown",
    ".jsonl": "the answer as a trace",
    ".html": "the answer as a page for a browser",
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
            free = _free_name()
            choices = (
                PickerOption(free + suffix, Content(f"{free}{suffix:8}{what}"))
                for suffix, what in KINDS.items()
            )
            hint = "↑ ↓ choose · Enter saves · Esc closes"
            picker = Picker("Save", choices, hint, field="another path", searches=False)
            await self._app.push_screen(picker, lambda path: self.save(path or ""))
            for field in picker.query(Input):  # the keys that follow are for it
                picker.set_focus(field)

    def save(self, path: str) -> None:
        if path and self._workspace.asked_anything():
            self.write(path, self._export)

    def write(self, path: str, write: Callable[[Path], None]) -> None:
        """Write a file under a path that the user typed; ask before that replaces one."""

        async def work() -> None:
            try:
                file = expanded(path, SessionError)
                question = ConfirmDialog(f"There is a file {path} already.", "replaces it")
                if file.is_file() and not await self._app.push_screen_wait(question):
                    return
                write(file)
            except (EntropixError, OSError) as error:
                self._app.notify(f"cannot save {path}: {error}", severity="error", markup=False)
            else:
                self._app.notify(f"saved {path}", markup=False)

        self._app.run_worker(work())

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
        elif path.suffix == ".html":
            write_whole(path, render(self._answer()))
        else:
            write_trace(self._answer(), path)

    def _answer(self) -> Trace:
        workspace, status = self._workspace, self._workspace.status
        turns = workspace.conversation.turns
        turn = min(workspace.transcript.turn, len(turns) - 1) % len(turns)
        if not turns[turn].answers:
            raise SessionError("there is no answer yet: wait for its first token")
        answer = turns[turn].answer
        header = self.header or Header(
            model=status.model,
            sampler=status.sampler,
            profile=workspace.profile,
            seed=answer.seed,
            messages=workspace.conversation.until(turn).prompt_messages,
            context_length=status.context_length,
            prompt_tokens=answer.prompt_tokens,
        )
        return Trace(header, answer.steps, {})


class ChatFiles(Exports):
    """Also opens the chats of a workspace, and saves them while they go on."""

    def __init__(
        self, app: App[None], workspace: Workspace, link: BackendLink, store: Store | None
    ) -> None:
        super().__init__(app, workspace)
        self._link = link
        self.autosave = AutoSave(app, store)

    def save_profile(self, profile: Profile) -> None:
        def write(path: Path) -> None:
            write_profile(profile, path, time.strftime("%Y-%m-%d"))

        dialog = TextDialog("Save the profile; --profile FILE uses it", "my-profile.toml")
        self._app.push_screen(dialog, lambda path: self.write(path, write) if path else None)

    def list_chats(self) -> None:
        store = self.autosave.store
        self.autosave.save(self._workspace.conversation)
        open_id = self._workspace.conversation.id
        self._app.push_screen(ChatList(store, open_id), self.open)

    def offer_crashed(self) -> None:
        store = self.autosave.store
        crashed = store.crashed() if store else []
        if crashed:
            question = "The program ended unexpectedly while a chat was open."
            dialog = ConfirmDialog(question, "reopens it")
            self._app.push_screen(dialog, lambda yes: self.open(crashed[-1] if yes else None))

    def open(self, chat: str | None) -> None:
        """Open a chat by its id in the list, or by its path, in place of this one."""
        store = self.autosave.store
        if not chat or chat == self._workspace.conversation.id:
            return

        def open_it(session: ChatSession, _: object) -> None:
            if store is not None and any(card.id == chat for card in store.cards()):
                session.resume(store.load(chat))
            else:
                session.load(expanded(chat, SessionError))

        self._link.interrupt()
        self._link.submit(open_it)


def _free_name() -> str:
    """Return a name that no file of any kind has here: chat, chat-2, …"""
    names = itertools.chain(["chat"], (f"chat-{number}" for number in itertools.count(2)))
    free = (name for name in names if not any(Path(name + suffix).exists() for suffix in KINDS))
    return next(free)
