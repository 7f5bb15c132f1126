"""Chats in files: those that the user names, and those that are kept by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App
from textual.widgets import Input

from entropix_mlx.errors import EntropixError, SessionError
from entropix_mlx.files import expanded

from .autosave import Keeper
from .backend_link import ModelLink
from .export import free_name, save, trace_header
from .screens.chats import ChatList
from .screens.dialogs import ConfirmDialog, TextDialog
from .workspace import Workspace

if TYPE_CHECKING:
    from entropix_mlx.chat.base import ChatSession


class Filing:
    """Saves and opens the conversation of a workspace."""

    def __init__(
        self, app: App[None], workspace: Workspace, link: ModelLink, keeper: Keeper
    ) -> None:
        """Set up.

        Args:
            app: shows dialogs and notices.
            workspace: has the conversation.
            link: opens another one in its place.
            keeper: knows where chats are kept.
        """
        self._app = app
        self._workspace = workspace
        self._link = link
        self._keeper = keeper

    async def ask_where_to_save(self) -> None:
        """Ask for a path, and save there."""
        if self._asked():
            title = "Save as (.json: chat, .md: text, .jsonl: trace)"
            await self._ask(title, free_name(), self.save)

    async def ask_what_to_open(self) -> None:
        """Ask for a path, and open what was saved there."""
        await self._ask("Open a saved chat", "chat.json", self.open)

    def save(self, path: str) -> None:
        """Save under a path that the user typed; ask before that replaces a file."""
        if not path or not self._asked():
            return
        try:
            file = expanded(path, SessionError)
            exists = file.is_file()
        except EntropixError as error:
            self._tell(f"cannot save {path}: {error}")
            return
        if not exists:
            self._write(file, path)
            return
        dialog = ConfirmDialog(f"There is a file {path} already.", "replaces it")
        self._app.push_screen(dialog, lambda yes: self._write(file, path) if yes else None)

    def open(self, path: str) -> None:
        """Open a saved chat in place of this one, which stays in the list if chats are kept."""
        if path:
            self._link.interrupt()
            self._link.submit(lambda session, _: session.load(expanded(path, SessionError)))

    def list_chats(self) -> None:
        """Show the chats that were kept."""
        store = self._keeper.store
        if store is None:
            self._app.notify("chats are not kept with --no-save or --demo", severity="warning")
            return
        self._keeper.keep(self._workspace.conversation)
        here = self._workspace.conversation.id
        self._app.push_screen(ChatList(store, here), self._open_kept)

    def offer_crashed(self) -> None:
        """Ask whether to go on with a chat that was open when a program died."""
        store = self._keeper.store
        crashed = store.crashed() if store else []
        if not crashed:
            return
        question = "The program ended unexpectedly while a chat was open."
        dialog = ConfirmDialog(question, "goes on with it")
        self._app.push_screen(dialog, lambda yes: self._open_kept(crashed[-1]) if yes else None)

    def rename(self, title: str) -> None:
        """Give this chat a title; nothing takes it away."""

        def job(session: ChatSession, _: object) -> None:
            session.conversation.title = title or None

        self._link.submit(job)

    def _open_kept(self, chat: str | None) -> None:
        store = self._keeper.store
        if chat is None or store is None or chat == self._workspace.conversation.id:
            return

        def resume(session: ChatSession, _: object) -> None:
            session.resume(store.load(chat))

        self._link.interrupt()
        self._link.submit(resume)

    async def _ask(self, title: str, text: str, then: Callable[[str], None]) -> None:
        """Ask for a line; return when the field is there, since the keys that follow are for it."""
        dialog = TextDialog(title, text)
        await self._app.push_screen(dialog, lambda line: then(line or ""))
        dialog.set_focus(dialog.query_one(Input))

    def _asked(self) -> bool:
        if not self._workspace.conversation.turns:
            self._app.notify("nothing was asked yet", severity="warning")
        return bool(self._workspace.conversation.turns)

    def _write(self, file: Path, path: str) -> None:
        try:
            save(self._workspace.conversation, file, trace_header(self._workspace))
        except (EntropixError, OSError) as error:
            self._tell(f"cannot save {path}: {error}")
        else:
            self._app.notify(f"saved {path}", markup=False)

    def _tell(self, message: str) -> None:
        self._app.notify(message, severity="error", markup=False)
