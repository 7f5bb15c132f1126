"""`entropix chat --plain`: questions and commands from stdin, a line each; answers on stdout."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from ..chat import slash
from ..chat.attachments import with_files
from ..errors import EntropixError, SessionError
from ..files import expanded
from ..palette import printable, to_json
from ..step import Step
from ..summary import Summary
from .shared import arg_types, output
from .shared.exit_codes import USAGE

if TYPE_CHECKING:
    from ..chat.session import Session

ENDS = "Ctrl-C stops an answer, Ctrl-D ends; @FILE in a question puts the file's text in"


class PlainChat:
    """Read lines, and send each to the session as a question, or do the command that it is."""

    def __init__(self, session: Session, verbose: bool, color: str) -> None:
        """Set up.

        Args:
            session: answers the questions.
            verbose: whether to tell statistics on stderr.
            color: ``"auto"``, ``"always"`` or ``"never"``.
        """
        self._session = session
        self._verbose = verbose
        self._colour = output.wants_colour(color, sys.stdout)
        self._commands: dict[str, Callable[[str], Iterator[Step] | None]] = {
            "/regenerate": lambda _: session.regenerate(),
            "/edit": self._edit,
            "/steps": lambda _: self._list_steps(),
            "/fork": self._fork,
            "/select": self._select,
            "/system": lambda text: session.instruct(text or None),
            "/new": lambda _: session.new(),
            "/save": lambda path: session.save(_file(path)),
            "/load": lambda path: session.load(_file(path)),
            "/help": lambda _: output.tell(f"{slash.listing(slash.shared())}\n{ENDS}"),
        }

    def run(self) -> int:
        """Read lines to the end of stdin and return the exit code.

        A mistake in a line is told on stderr. On a terminal the user can correct it, so the code is
        0; in a pipe nobody can, so it is that of a usage error.
        """
        interactive = sys.stdin.isatty()
        if interactive and self._verbose:
            output.tell("write a question, or /help")
        mistakes = 0
        for line in _lines(interactive):
            if line == "/quit":
                break
            try:
                self._answer(line)
            except EntropixError as error:
                output.tell(f"entropix: {error}")
                mistakes += 1
        return USAGE if mistakes and not interactive else 0

    def _answer(self, line: str) -> None:
        steps = self._do(line)
        if steps is None:
            return
        summary = Summary()
        try:
            for step in steps:
                summary.add(step)
                output.write_step(step, self._colour)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        finally:
            self._session.close()
            output.write("\n")
        if self._verbose:
            self._print_statistics(summary)
            output.tell_if_unsure(self._session.certainty)

    def _do(self, line: str) -> Iterator[Step] | None:
        command = slash.parse(line, slash.shared())
        if command is None:
            return self._session.send(with_files(line))
        name, argument = command
        return self._commands[name](argument)

    def _edit(self, text: str) -> Iterator[Step]:
        turns = self._session.conversation.turns
        if not turns:
            raise SessionError("nothing was asked yet: there is no question to edit")
        return self._session.send(with_files(text), turn=len(turns) - 1)

    def _fork(self, argument: str) -> Iterator[Step]:
        step, _, token = argument.partition(" ")
        if not token:
            raise SessionError("write /fork STEP TOKEN, in numbers that /steps lists")
        return self._session.fork(_whole(step), _whole(token))

    def _list_steps(self) -> None:
        turns = self._session.conversation.turns
        for step in turns[-1].answer.steps if turns else ():
            others = (other for other in step.top_logprobs if other.token != step.token)
            listed = "  ".join(
                f"{other.token} {_quoted(other.text)} {exp(other.logprob):.0%}" for other in others
            )
            output.write(f"{step.index:4}  {step.token:6} {_quoted(step.text):16} {listed}\n")

    def _select(self, number: str) -> None:
        self._session.select(_whole(number) - 1)
        output.write_text(self._session.messages[-1]["content"] + "\n")

    def _print_statistics(self, summary: Summary) -> None:
        done = summary.interventions
        output.tell(
            f"({output.shares(summary, self._colour)}; {done + '; ' if done else ''}"
            f"{summary.tokens_per_second:.1f} tokens/s)"
        )


def tell_dropped(turns: int) -> None:
    """Say on stderr that the model no longer sees the oldest turns."""
    output.tell(f"(the context is full: the model no longer sees the first {turns} turns)")


def _lines(interactive: bool) -> Iterator[str]:
    """Yield the lines of stdin that are not empty; Ctrl-C at the prompt ends, as Ctrl-D does."""
    if not interactive:
        yield from filter(None, map(str.strip, iter(sys.stdin.readline, "")))
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() a history and editing
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            output.write("\n")
            return
        if line:
            yield line


def _quoted(text: str) -> str:
    return to_json(printable(text))


def _file(argument: str) -> Path:
    if not argument:
        raise SessionError("this command needs a file: /help shows how")
    return expanded(argument, SessionError)


def _whole(text: str) -> int:
    try:
        return arg_types.count(text.strip())
    except argparse.ArgumentTypeError:
        message = f"{text!r} is not a number: /help shows what the command takes"
        raise SessionError(message) from None
