"""What the keys of the chat are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

from .composer.status import State
from .screens.duel import DuelScreen

# What opens a dialog has priority, or keys that are typed at once would overtake it.
CHAT_BINDINGS: list[BindingType] = [
    Binding("escape", "escape", "Stop", tooltip="Stop; leave the tokens", id="app.escape"),
    Binding(
        "ctrl+r",
        "regenerate",
        "Again",
        id="chat.regenerate",
        tooltip="Answer again: another answer to the last question",
    ),
    Binding(
        "ctrl+g",
        "edit",
        "Edit",
        id="chat.edit",
        priority=True,
        tooltip="Edit question: ask the last one differently",
    ),
    Binding(
        "f3", "tune", "Settings", id="chat.tune", tooltip="Settings: sampler, thresholds, seed"
    ),
    Binding("f4", "duel", "Duel", id="chat.duel", tooltip="Duel: two samplers side by side"),
    Binding(
        "ctrl+n",
        "new",
        "New",
        show=False,
        id="chat.new",
        tooltip="New chat: begin another; this one is kept",
    ),
    Binding(
        "ctrl+s",
        "save",
        "Save",
        show=False,
        id="chat.save",
        priority=True,
        tooltip="Save: chat, Markdown or trace",
    ),
    Binding(
        "ctrl+o",
        "open",
        "Open",
        show=False,
        id="chat.open",
        priority=True,
        tooltip="Open: a saved chat",
    ),
    Binding(
        "ctrl+l",
        "chats",
        "Chats",
        id="chat.chats",
        priority=True,
        tooltip="Chats: open, search, rename or delete one",
    ),
    Binding(
        "f5",
        "models",
        "Model",
        show=False,
        id="chat.models",
        priority=True,
        tooltip="Model: choose another",
    ),
    Binding(
        "f6",
        "generation",
        "Options",
        show=False,
        id="chat.generation",
        priority=True,
        tooltip="Options: most tokens, top-p, top-k, min-p",
    ),
    Binding(
        "ctrl+f",
        "find",
        "Find",
        show=False,
        id="chat.find",
        priority=True,
        tooltip="Find: search in this chat",
    ),
    Binding(
        "ctrl+y",
        "code",
        "Copy code",
        show=False,
        id="chat.code",
        priority=True,
        tooltip="Copy code: the last block of the answer",
    ),
]
DIALOGS = ("edit", "save", "open", "chats", "models", "generation", "find", "code")
"""Actions whose keys have priority, and rest while a dialog is open."""
OF_THE_CHAT = (*DIALOGS, "tune", "duel", "new", "regenerate")
"""Actions whose keys rest while a duel lies over the chat."""


def rests(action: str, screens: Sequence[Screen[Any]]) -> bool:
    """Tell whether the key of an action has no meaning because of what lies over the chat.

    Args:
        action: what the key does.
        screens: the stack of screens; the last one is on top.
    """
    under_dialog = any(isinstance(screen, ModalScreen) for screen in screens[-1:])
    under_duel = any(isinstance(screen, DuelScreen) for screen in screens)
    return (under_dialog and action in DIALOGS) or (under_duel and action in OF_THE_CHAT)


def useful_keys(state: State, answers: int | None, chosen: bool, typed: bool) -> dict[str, bool]:
    """Return which of the keys that do not always help would do something now.

    Args:
        state: what the model is doing.
        answers: how many there are to the question in question; None if none was asked.
        chosen: whether the user has selected another way from the token with the cursor.
        typed: whether there is something in the field.
    """
    asked, loaded = answers is not None, state not in (State.LOADING, State.FAILED)
    return {
        "app.escape": state.busy,  # it also leaves the tokens, as Tab does
        "composer.tab": asked,
        "chat.regenerate": asked,
        "chat.edit": asked,
        "chat.duel": not state.refusal and (asked or typed),
        "chat.tune": loaded,
        "transcript.leave": True,
        "transcript.fork": chosen and loaded,
        "transcript.previous": (answers or 0) > 1,
    }
