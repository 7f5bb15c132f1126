"""Commands that are typed in the field: the same as in ``entropix chat --plain``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from entropix_mlx.backends.events import UserMessage
from entropix_mlx.chat.attachments import with_files
from entropix_mlx.chat.slash import parse
from entropix_mlx.errors import SessionError

if TYPE_CHECKING:
    from .app import ChatApp

Action = Callable[["ChatApp", str], object]


def run_command(app: ChatApp, line: str) -> bool:
    """Do what a line says that begins with a slash; return whether it does.

    Raises:
        SessionError: there is no such command, or it needs something else behind it.
    """
    command = parse(line)
    if command is None:
        return False
    name, argument = command
    ACTIONS[name](app, argument)
    return True


def _edit(app: ChatApp, text: str) -> None:
    if not text:
        app.action_edit()
        return
    turns = app.workspace.conversation.turns
    if not turns:
        raise SessionError("nothing was asked yet: there is no question to edit")
    app.link.ask(UserMessage(with_files(text), len(turns) - 1))


def _steps(app: ChatApp, _: str) -> None:
    app.on_composer_left()


def _fork(app: ChatApp, argument: str) -> None:
    step, _, token = argument.partition(" ")
    index, chosen = _whole(step), _whole(token)
    app.link.submit(lambda session, cancel: session.fork(index, chosen, cancel=cancel))


def _select(app: ChatApp, argument: str) -> None:
    number = _whole(argument)
    app.link.submit(lambda session, _: session.select(number - 1))


def _system(app: ChatApp, text: str) -> None:
    if text:
        app.link.submit(lambda session, _: session.instruct(text))
    else:
        app.call_later(app.action_system_prompt)


def _save(app: ChatApp, path: str) -> None:
    app.filing.save(path) if path else app.call_later(app.action_save)


def _load(app: ChatApp, path: str) -> None:
    app.filing.open(path) if path else app.call_later(app.action_open)


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise SessionError(f"{text!r} is not a number: write /fork STEP TOKEN, or /select N")
    return int(text)


ACTIONS: Mapping[str, Action] = {
    "/regenerate": lambda app, _: app.action_regenerate(),
    "/edit": _edit,
    "/steps": _steps,
    "/fork": _fork,
    "/select": _select,
    "/system": _system,
    "/new": lambda app, _: app.action_new(),
    "/save": _save,
    "/load": _load,
    "/chats": lambda app, _: app.action_chats(),
    "/rename": lambda app, title: app.filing.rename(title),
    "/models": lambda app, _: app.action_models(),
    "/settings": lambda app, _: app.action_generation(),
    "/find": lambda app, words: app.find(words),
    "/code": lambda app, _: app.action_code(),
    "/help": lambda app, _: app.action_help(),
    "/quit": lambda app, _: app.exit(),
}
