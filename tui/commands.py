"""Commands that are typed in the field: the same as in ``entropix chat --plain``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from entropix_mlx.errors import SessionError
from entropix_mlx.serving.events import Question

if TYPE_CHECKING:
    from .app import ChatApp

Command = Callable[["ChatApp", str], object]


def run_command(app: ChatApp, line: str) -> None:
    """Do what a line says that begins with a slash.

    Raises:
        SessionError: there is no such command, or it needs something else behind it.
    """
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name.strip())
    if command is None:
        raise SessionError(f"no command {name.strip()}: there are {', '.join(COMMANDS)}")
    command(app, argument.strip())


def _edit(app: ChatApp, text: str) -> None:
    if not text:
        app.action_edit()
        return
    turns = app.workspace.conversation.turns
    if not turns:
        raise SessionError("nothing was asked yet: there is no question to edit")
    app.link.ask(Question(text, len(turns) - 1))


def _steps(app: ChatApp, _: str) -> None:
    app.workspace.transcript.focus()
    app.workspace.transcript.action_move(-1)


def _fork(app: ChatApp, argument: str) -> None:
    step, _, token = argument.partition(" ")
    index, chosen = _whole(step), _whole(token)
    app.link.submit(lambda session, cancel: session.fork(index, chosen, cancel=cancel))


def _select(app: ChatApp, argument: str) -> None:
    number = _whole(argument)
    app.link.submit(lambda session, _: session.select(number - 1))


def _system(app: ChatApp, text: str) -> None:
    app.link.submit(lambda session, _: session.instruct(text or None))


def _save(app: ChatApp, path: str) -> None:
    app.save(path) if path else app.call_later(app.action_save)


def _load(app: ChatApp, path: str) -> None:
    app.open(path) if path else app.call_later(app.action_open)


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise SessionError(f"{text!r} is not a number: write /fork STEP TOKEN, or /select N")
    return int(text)


COMMANDS: Mapping[str, Command] = {
    "/regenerate": lambda app, _: app.action_regenerate(),
    "/edit": _edit,
    "/steps": _steps,
    "/fork": _fork,
    "/select": _select,
    "/system": _system,
    "/new": lambda app, _: app.action_new(),
    "/save": _save,
    "/load": _load,
    "/help": lambda app, _: app.action_help(),
    "/quit": lambda app, _: app.exit(),
}
