"""The list to choose from: answers, branches, chats, models, kinds of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from .dialogs import Dialog


class PickerOption(NamedTuple):
    """One of the things to choose from."""

    value: Any
    line: Content
    """May have several lines."""
    disabled: bool = False
    words: str = ""
    """Searched as well as the line."""


class Picker(Dialog[Any]):
    """A list; ↑ and ↓ move, Enter chooses. Returns the value of a choice, or a text that was typed.

    The field above the list has the focus if there is one.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", "Next", priority=True),
        Binding("up", "move(-1)", "Previous", priority=True),
        Binding("enter", "choose", "Choose"),
    ]

    def __init__(
        self,
        title: str,
        choices: Iterable[PickerOption] = (),
        hint: str = "Enter chooses · Esc closes",
        *,
        highlighted: int = 0,
        field: str = "",
        searches: bool = True,
        id: str | None = None,
    ) -> None:
        """Prepare a list.

        Args:
            highlighted: index of the choice that is highlighted first.
            field: placeholder of a field above the list; without one there is no field.
            searches: whether what is typed there narrows the list down.
        """
        super().__init__(id)
        self._title = title
        self._choices = list(choices)
        self._listed = self._choices
        self._hint = hint
        self._first = highlighted
        self._field = field
        self._searches = searches

    def compose(self) -> ComposeResult:
        options = OptionList()
        options.can_focus = False
        with Vertical():
            yield Label(Content(self._title))
            if self._field:
                yield Input(placeholder=self._field)
            yield options
            yield Label(Content(self._hint), classes="hint")

    async def on_mount(self) -> None:
        if self.children:  # else the app was left meanwhile
            self._list(self._choices, self._first)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys with priority while a dialog is on top."""
        return self.app.screen is self or action == "dismiss"

    def show(self, choices: Sequence[PickerOption], hint: str | None = None) -> None:
        """Show other choices, as far as what was typed leaves any."""
        self._choices = list(choices)
        if not self.children:
            return
        if hint is not None:
            self.query_one(".hint", Label).update(Content(hint))
        self.on_input_changed()

    @property
    def text(self) -> str:
        return self.query_one(Input).value.strip() if self._field else ""

    @property
    def choice(self) -> PickerOption | None:
        number = self.query_one(OptionList).highlighted
        return None if number is None else self._listed[number]

    def on_input_changed(self) -> None:
        words = self.text.casefold().split() if self._searches else []
        texts = ((choice, f"{choice.line.plain}\n{choice.words}") for choice in self._choices)
        self._list([one for one, text in texts if all(word in text.casefold() for word in words)])

    def on_input_submitted(self) -> None:
        self.action_choose()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._listed[event.option_index].value)

    def on_key(self, event: events.Key) -> None:
        if not self._field and (event.character or "").isdecimal():
            number = int(event.character or 0) - 1
            if 0 <= number < len(self._listed) and not self._listed[number].disabled:
                self.dismiss(self._listed[number].value)

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        options.action_cursor_down() if by > 0 else options.action_cursor_up()

    def action_choose(self) -> None:
        if self.text and not (self._searches and self.choice):
            self.dismiss(self.text)
        elif self.choice is not None:
            self.dismiss(self.choice.value)

    def _list(self, choices: list[PickerOption], highlighted: int = 0) -> None:
        self._listed = choices
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(choice.line, disabled=choice.disabled) for choice in choices)
        options.highlighted = highlighted if choices else None
