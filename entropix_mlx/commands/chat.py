"""`entropix chat`: the terminal UI; with --plain, a conversation line by line."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EntropixError, PromptError, SessionError
from ..files import expanded
from ..palette import printable, to_json
from ..step import Step
from ..summary import Summary
from ..traces.trace import TraceFolder
from . import USAGE, options, terminal

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..chat.session import Session
    from ..models.llama import Model

ALTERNATIVES = 8
"""Most probable tokens that the terminal UI shows for each token."""
PLAIN_ALTERNATIVES = 3
"""Those that /steps lists."""
HELP = """\
/regenerate            answer the last question once more
/edit TEXT             ask TEXT in the place of the last question
/steps                 list the tokens of the last answer, with the most probable others
/fork STEP TOKEN       put the token of that id at a step of the last answer, and go on from there
/select N              take the last question's Nth answer
/system TEXT           precede the conversation with TEXT (nothing: with nothing)
/new                   begin another conversation
/save FILE  /load FILE
/help  /quit           also: Ctrl-C stops an answer, Ctrl-D ends"""


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    options.add_model(parser)
    parser.add_argument("--plain", action="store_true", help="line by line, without a full screen")
    parser.add_argument("--system-prompt", help="instructions that precede the conversation")
    parser.add_argument("--trace", type=options.file, metavar="DIR", help="record every answer in a"
        " file of this folder as it comes")  # fmt: skip
    options.add_settings(parser)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Converse on a full screen, or line by line."""
    return run_plain(arguments) if arguments.plain else run_screen(arguments)


def run_screen(arguments: argparse.Namespace) -> int:
    """Open the terminal UI."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        raise PromptError("the terminal UI needs a terminal: add --plain in a pipe")
    from tui.app import Chat, ChatApp

    settings = options.to_settings(arguments, ALTERNATIVES)

    def load() -> tuple[Model, TokenizerWrapper]:
        from ..checkpoints.loading import load

        return load(arguments.model, dequantize=arguments.dequantize)

    name = options.model_name(arguments)
    traces = _trace_folder(arguments)
    chat = Chat(name, load, settings, arguments.system_prompt, arguments.ask, traces)
    ChatApp(chat).run()
    return 0


def run_plain(arguments: argparse.Namespace) -> int:
    """Converse until the end of stdin."""
    if sys.stdin is None:
        raise PromptError("there is no stdin to read questions from: use entropix generate")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are not text are no reason to stop
    settings = options.to_settings(arguments, PLAIN_ALTERNATIVES)
    traces = _trace_folder(arguments)
    model, tokenizer = options.load_model(arguments)
    if arguments.verbose:
        options.hint_at_calibration(settings, model)
    from ..chat.session import Session

    session = Session(
        model,
        tokenizer,
        settings,
        system_prompt=arguments.system_prompt,
        on_prefill=terminal.prefill_progress(arguments.verbose),
        on_drop=_tell_dropped,
        choose=terminal.ask if arguments.ask else None,
        traces=traces,
    )
    return _Chat(session, arguments.verbose, arguments.color).run()


def _trace_folder(arguments: argparse.Namespace) -> TraceFolder | None:
    if arguments.trace is None:
        return None
    return TraceFolder(arguments.trace, options.model_name(arguments))


def _tell_dropped(turns: int) -> None:
    terminal.tell(f"(the context is full: the model no longer sees the first {turns} turns)")


class _Chat:
    """Reads lines, and does what they say."""

    def __init__(self, session: Session, verbose: bool, color: str) -> None:
        self._session = session
        self._verbose = verbose
        self._colour = terminal.wants_colour(color, sys.stdout)
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
            "/help": lambda _: terminal.tell(HELP),
        }

    def run(self) -> int:
        """Return the exit code: that of a mistake only where nobody could mend it."""
        interactive = sys.stdin.isatty()
        if interactive and self._verbose:
            terminal.tell("write a question, or /help")
        mistakes = 0
        for line in _lines(interactive):
            if line == "/quit":
                break
            try:
                self._answer(line)
            except EntropixError as error:
                terminal.tell(f"entropix: {error}")
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
                terminal.write_step(step, self._colour)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        finally:
            self._session.close()
            terminal.write("\n")
        if self._verbose:
            self._print_statistics(summary)

    def _do(self, line: str) -> Iterator[Step] | None:
        name, _, argument = line.partition(" ")
        if not name.startswith("/"):
            return self._session.send(line)
        if name not in self._commands:
            raise SessionError(f"no command {name}: /help lists them")
        return self._commands[name](argument.strip())

    def _edit(self, text: str) -> Iterator[Step]:
        questions = [n for n, m in enumerate(self._session.messages) if m["role"] == "user"]
        if not questions:
            raise SessionError("nothing was asked yet: there is no question to edit")
        return self._session.edit(questions[-1], text)

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
            terminal.write(f"{step.index:4}  {step.token:6} {_quoted(step.text):16} {listed}\n")

    def _select(self, number: str) -> None:
        self._session.select(_whole(number) - 1)
        terminal.write_text(self._session.messages[-1]["content"] + "\n")

    def _print_statistics(self, summary: Summary) -> None:
        done = summary.interventions
        terminal.tell(
            f"({terminal.shares(summary, self._colour)}; {done + '; ' if done else ''}"
            f"{summary.tokens_per_second:.1f} tokens/s)"
        )


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
            terminal.write("\n")
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
    if not text.strip().isdecimal():
        raise SessionError(f"{text!r} is not a number: /help shows what the command takes")
    return int(text)
