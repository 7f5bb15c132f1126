"""Lists to choose from: the saved chats, and the models on this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from entropix_mlx.backends.events import ModelsListed
from entropix_mlx.chat.store import Card, Store
from entropix_mlx.errors import SessionError
from entropix_mlx.palette import printable

from .dialogs import ConfirmDialog, Dialog, TextDialog

if TYPE_CHECKING:
    from entropix_mlx.checkpoints.inventory import LocalModel

NAME_CHARACTERS = 60


class ChatPane(Vertical):
    """The saved chats beside the text, newest first, with a search; Enter or a click opens one.

    Nothing is read before it is shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.leave_tokens", "Back", show=False),
        Binding("down", "move(1)", "Next", show=False),
        Binding("up", "move(-1)", "Previous", show=False),
    ]
    DEFAULT_CSS = """
    ChatPane { padding: 0 1; }
    ChatPane Input { border: none; height: 1; padding: 0; background: $surface; }
    ChatPane OptionList { border: none; padding: 1 0; height: 1fr; background: $background; }
    """

    @dataclass
    class Opened(Message):
        """The user chose a chat."""

        chat: str

    class Shown(Message):
        """There is room for the pane now."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._cards: list[Card] = []
        self._listed: list[Card] = []
        self._current = ""

    def on_show(self) -> None:
        self.post_message(self.Shown())

    async def read(self, store: Store, current: str) -> None:
        """Show the chats of a store; only now are there any widgets, for the first frame's sake."""
        self._current, self._cards = current, await asyncio.to_thread(store.cards)
        if not self.children:
            await self.mount(Input(placeholder="search chats"), OptionList())
        self._show()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        index = self.query_one(OptionList).highlighted
        if index is not None:
            self.post_message(self.Opened(self._listed[index].id))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Opened(self._listed[event.option_index].id))

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        options.action_cursor_down() if by > 0 else options.action_cursor_up()

    def _show(self) -> None:
        words = self.query_one(Input).value
        self._listed = [card for card in self._cards if card.has(words)]
        show_cards(self.query_one(OptionList), self._listed, self._current)


class ChatList(Dialog[str]):
    """The saved chats: search, open, rename, delete. Returns the id of the chat to open."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", "Next", priority=True),
        Binding("up", "move(-1)", "Previous", priority=True),
        Binding("ctrl+e", "rename", "Rename", priority=True),
        Binding("ctrl+d", "delete", "Delete", priority=True),
    ]

    def __init__(self, store: Store, current: str) -> None:
        """Prepare the list; the current chat can be neither renamed nor deleted."""
        super().__init__()
        self._store = store
        self._current = current
        self._cards: list[Card] = []
        self._listed: list[Card] = []

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Saved chats")
            yield Input(placeholder="search")
            yield OptionList()
            keys = "Enter opens, Ctrl+E renames, Ctrl+D deletes, Escape closes"
            yield Label(keys, classes="hint")

    async def on_mount(self) -> None:
        await self._read()

    def on_input_changed(self) -> None:
        self._show()

    def on_input_submitted(self) -> None:
        if (card := self._highlighted) is not None:
            self.dismiss(card.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._listed[event.option_index].id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys with priority while a dialog is on top."""
        return self.app.screen is self or action == "dismiss"

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        options.action_cursor_down() if by > 0 else options.action_cursor_up()

    async def action_rename(self) -> None:
        card = self._changeable()
        if card is None:
            return

        async def rename(title: str | None) -> None:
            if title is not None:
                await self._change(self._store.rename, card.id, title.strip() or None)

        await self.app.push_screen(TextDialog("Title", card.name), rename)

    async def action_delete(self) -> None:
        card = self._changeable()
        if card is None:
            return

        async def delete(yes: bool | None) -> None:
            if yes:
                await self._change(self._store.delete, card.id)

        question = f"Delete “{printable(card.name)}” for good?"
        await self.app.push_screen(ConfirmDialog(question, "deletes it"), delete)

    @property
    def _highlighted(self) -> Card | None:
        index = self.query_one(OptionList).highlighted
        return None if index is None else self._listed[index]

    def _changeable(self) -> Card | None:
        card = self._highlighted
        if card is not None and card.id == self._current:
            reason = "this chat is open: rename it by /rename TITLE, or leave it by Ctrl+N first"
            self.notify(reason, severity="warning")
            return None
        return card

    async def _change(self, change: Callable[..., None], *arguments: str | None) -> None:
        try:
            await asyncio.to_thread(change, *arguments)
        except SessionError as error:
            self.notify(str(error), severity="error", markup=False)
        await self._read()

    async def _read(self) -> None:
        self._cards = await asyncio.to_thread(self._store.cards)
        self._show()

    def _show(self) -> None:
        words = self.query_one(Input).value
        self._listed = [card for card in self._cards if card.has(words)]
        show_cards(self.query_one(OptionList), self._listed, self._current)


def show_cards(options: OptionList, cards: Sequence[Card], current: str) -> None:
    options.clear_options()
    options.add_options(_card_option(card, card.id == current) for card in cards)
    options.highlighted = 0 if cards else None


def _card_option(card: Card, is_open: bool) -> Option:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(card.changed))
    turns = "1 question" if card.turns == 1 else f"{card.turns} questions"
    here = " · open now" if is_open else ""
    name = Content.styled(printable(card.name), "bold")
    return Option(name + Content(f"\n  {when} · {turns}{here}"))


class ModelPicker(Dialog[str]):
    """The models on this machine. Returns the name of the one that was chosen."""

    def __init__(self) -> None:
        super().__init__()
        self._models: Sequence[LocalModel] = ()

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Models on this machine")
            yield OptionList()
            yield Label("looking for models …", classes="hint")

    def receive(self, event: ModelsListed) -> None:
        self._models, error = event.models, event.error
        self.query_one(OptionList).add_options(map(_option, self._models))
        keys = "Enter loads one; the conversation stays. Escape keeps this one."
        self.query_one(".hint", Label).update(Content(error or keys))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._models[event.option_index].name)


def _option(model: LocalModel) -> Option:
    name = model.name if len(model.name) <= NAME_CHARACTERS else f"…{model.name[-NAME_CHARACTERS:]}"
    context = f"context {model.context or '?'} tokens"
    details = f"{model.nbytes / 1e9:.2f} GB, {model.precision or '?'}, {context}"
    fault = "" if model.fault is None else f" · does not run: {model.fault}"
    text = Content.styled(printable(name), "bold") + Content(f"\n  {details}{printable(fault)}")
    return Option(text, disabled=model.fault is not None)
