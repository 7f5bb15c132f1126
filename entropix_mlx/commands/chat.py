"""`entropix chat`: the terminal UI; with --plain, a conversation line by line."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from .. import limits
from ..answer.promise import unsure_rule
from ..backends.remote import KEY_VARIABLE, NO_ASKING, NO_TRACE, Address
from ..chat import slash
from ..chat.attachments import with_files
from ..configuration import Configuration
from ..errors import EntropixError, PromptError, SessionError, SettingsError
from ..files import expanded
from ..palette import printable, to_json
from ..settings import Settings
from ..step import Step
from ..summary import Summary
from ..traces.trace import TraceFolder
from .shared import answers, loading, options, output
from .shared.loading import with_model
from .shared.options import ModelOptions
from .shared.output import USAGE

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..backends.base import Backend
    from ..chat.session import Session
    from ..models.base import LanguageModel

ALTERNATIVES = 8
"""Most probable tokens that the terminal UI shows for each token."""
PLAIN_ALTERNATIVES = 3
"""Most probable tokens that /steps lists for each token, with --plain."""
ENDS = "Ctrl-C stops an answer, Ctrl-D ends; @FILE in a question inserts the file's text"


@dataclass(frozen=True)
class ChatRequest:
    """Who answers, how, and what the conversation begins with."""

    model: ModelOptions
    settings: Settings
    configuration: Configuration
    plain: bool
    demo: bool
    server: Address | None
    save: bool
    system_prompt: str | None
    trace: Path | None
    ask: bool
    notes: Path | None
    color: str
    yes: bool
    """Whether to download a model without asking."""

    @property
    def traces(self) -> TraceFolder | None:
        """The folder that records every answer; it is made here."""
        return TraceFolder(self.trace, self.model.name) if self.trace else None


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    options.add_yes(parser)
    add("--plain", action="store_true", help="converse line by line, without a full screen")
    add("--demo", action="store_true", help="play a recorded session, without a model")
    add("--no-save", action="store_true", help="do not save this chat")
    add("--system-prompt", help="instructions that precede the conversation")
    what = "record every answer in a file of this folder"
    add("--trace", type=options.file, metavar="DIR", help=what)
    where = "converse with the model of an entropix serve, as at http://127.0.0.1:8080"
    add("--server", metavar="URL", help=f"{where} (its key in {KEY_VARIABLE})")
    options.add_answers(parser)
    options.add_settings(parser)
    options.add_constraint(parser)
    parser.set_defaults(loops="stop", branch=True)  # forks are for those who watch
    options.add_notes(parser)
    options.add_draft_model(parser)
    options.add_color(parser)
    options.add_verbose(parser)


def parse_request(arguments: argparse.Namespace) -> ChatRequest:
    if arguments.demo or arguments.server is not None:
        # What a recording or a server cannot do is refused only where it was typed.
        arguments.model, arguments.trace = arguments.typed.model, arguments.typed.trace
        arguments.ask = arguments.typed.ask
    if arguments.demo:
        _check_demo(arguments)
    elif arguments.server is not None:
        _check_server(arguments)
    address = None
    if arguments.server is not None:
        address = Address(arguments.server, os.environ.get(KEY_VARIABLE) or None)
    listed = PLAIN_ALTERNATIVES if arguments.plain else ALTERNATIVES
    return ChatRequest(
        model=options.model_options(arguments),
        settings=options.to_settings(arguments, top_logprobs=listed),
        configuration=arguments.configuration,
        plain=arguments.plain,
        demo=arguments.demo,
        server=address,
        save=not arguments.no_save,
        system_prompt=arguments.system_prompt,
        trace=arguments.trace,
        ask=arguments.ask,
        notes=arguments.notes,
        color=arguments.color,
        yes=arguments.yes,
    )


def _check_demo(arguments: argparse.Namespace) -> None:
    for name in ("plain", "server", "model", "draft_model", "trace", "notes"):
        if getattr(arguments, name):
            option = "--" + name.replace("_", "-")
            raise SettingsError(f"--demo plays a recording on the full screen: leave {option} out")


def _check_server(arguments: argparse.Namespace) -> None:
    if arguments.ask:
        raise SettingsError(NO_ASKING)
    if arguments.trace:
        raise SettingsError(NO_TRACE)
    if arguments.notes is not None:
        raise SettingsError("the server cannot search your notes: leave --notes out")
    if arguments.plain or arguments.model is not None or arguments.draft_model is not None:
        raise SettingsError("--server is for the full screen, and the server has its own model")


def run(arguments: argparse.Namespace) -> int:
    request = parse_request(arguments)
    if request.demo:
        return run_demo(request)
    configuration = request.configuration
    if configuration.theme or configuration.colours or configuration.keys:
        from entropix_mlx.tui.app import ChatApp  # slow to import, and needed for little

        ChatApp.check(configuration)  # mistakes are errors also where no screen is shown
    return run_plain(request) if request.plain else run_screen(request)


def run_demo(request: ChatRequest) -> int:
    output.check_screen("the demo cannot be shown in a pipe")
    from entropix_mlx.tui.app import run_chat
    from entropix_mlx.tui.terminal import require_full_screen

    from ..backends.recorded import RecordedBackend, demo_recording

    require_full_screen("use a terminal that can")
    backend = RecordedBackend(request.settings, demo_recording())
    return run_chat(backend, None, request.configuration)


def run_screen(request: ChatRequest) -> int:
    output.check_screen("add --plain in a pipe")
    from entropix_mlx.tui.app import run_chat
    from entropix_mlx.tui.terminal import require_full_screen

    from ..chat.store import Store

    require_full_screen("add --plain")
    if request.server is None:
        backend = _local(_with_model(request))
    else:
        backend = _remote(request, request.server)
    return run_chat(backend, Store() if request.save else None, request.configuration)


def _with_model(request: ChatRequest) -> ChatRequest:
    return replace(request, model=with_model(request.model, yes=request.yes))


def _remote(request: ChatRequest, server: Address) -> Backend:
    from ..backends.remote import RemoteBackend

    return RemoteBackend(server, request.settings, request.system_prompt)


def _local(request: ChatRequest) -> Backend:
    from ..backends.local import LocalBackend

    chosen = request.model

    def load(model: str | None) -> tuple[LanguageModel, TokenizerWrapper]:
        from ..checkpoints.loading import Extras, load

        # The extras fit the model they were asked for with, and not another that is picked later.
        extras = Extras(**chosen.extras) if model == chosen.model else None
        return load(model, dequantize=chosen.dequantize, extras=extras)

    return LocalBackend(
        chosen.name,
        lambda: load(chosen.model),
        request.settings,
        request.system_prompt,
        request.ask,
        request.traces,
        load_named=load,
        notes=loading.open_notes(request.notes),
        load_draft=partial(loading.load_draft, chosen),
    )


def run_plain(request: ChatRequest) -> int:
    if sys.stdin is None:
        raise PromptError("there is no stdin to read questions from: use entropix generate")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # do not stop at bytes that are not UTF-8
    request = _with_model(request)
    traces = request.traces
    notes = loading.open_notes(request.notes)
    model, tokenizer = loading.load_model(request.model)
    loading.resolve(request.settings, model)
    from ..chat.session import Session

    session = Session(
        model,
        tokenizer,
        request.settings,
        system_prompt=request.system_prompt,
        on_prefill=output.prefill_progress(),
        on_drop=_report_dropped,
        choose=answers.choose_branch if request.ask else None,
        traces=traces,
    )
    session.notes = notes
    session.draft_model = loading.load_draft(request.model, model, tokenizer)
    return PlainChat(session, request.model.name, request.color).run()


def _report_dropped(turns: int) -> None:
    output.report(f"(the context is full: the model no longer sees the first {turns} turns)")


class PlainChat:
    """Reads lines, and sends each to the session as a question, or runs the command that it is."""

    def __init__(self, session: Session, model: str, color: str) -> None:
        self._session, self._model = session, model
        self._colour = output.use_colour(color, sys.stdout)
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
            "/help": lambda _: output.report(f"{slash.listing(slash.shared())}\n{ENDS}"),
        }

    def run(self) -> int:
        """Read lines to the end of stdin and return the exit code.

        A mistake in a line is reported on stderr. On a terminal the user can correct it, so the
        code is 0; in a pipe nobody can, so it is that of a usage error.
        """
        interactive = sys.stdin.isatty()
        if interactive:
            output.info("write a question, or /help")
        mistakes = 0
        for line in _lines(interactive):
            if line == "/quit":
                break
            try:
                self._answer(line)
            except EntropixError as error:
                output.report_error(str(error))
                mistakes += 1
        return USAGE if mistakes and not interactive else 0

    def _answer(self, line: str) -> None:
        command = slash.parse(line, slash.shared())
        if command is None:
            steps: Iterator[Step] | None = self._session.send(with_files(line))
        else:
            name, argument = command
            steps = self._commands[name](argument)
        if steps is None:
            return
        # In a pipe only the chosen one of several answers is written.
        held = self._session.settings.answers != 1 and not sys.stdout.isatty()
        first: list[Step] = []
        try:
            for step in steps:
                first.append(step)
                if not held:
                    answers.write_step(step, self._colour)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        finally:
            self._session.close()
            if not held:
                output.write("\n")
        summary = Summary.of(self._show_chosen(first, held))
        shares, done = answers.shares(summary, self._colour), summary.interventions
        looped = f"ended: {summary.ending}" if summary.stopped else ""
        speed = f"{summary.tokens_per_second:.1f} tokens/s"
        output.info(f"({'; '.join(filter(None, (shares, done, looped, speed)))})")
        for value in answers.constrained(summary):
            output.info(value)
        rule = unsure_rule(self._model, self._session.profile.abstain)
        answers.report_if_unsure(rule.verdict(summary.metrics))

    def _show_chosen(self, first: list[Step], held: bool) -> list[Step]:
        """Return the chosen one of several answers, or the only one; write it if it is not
        shown."""
        several, chosen = self._session.several, first
        if several is not None and several.complete:
            chosen = several.chosen.steps
            output.info(f"({several.standing.counts}; {several.standing.basis})")
            if several.chosen is not several.candidates[0] and not held:
                held = True
                number = several.candidates.index(several.chosen) + 1
                output.write(f"── answer {number} of {len(several.candidates)} was chosen ──\n")
        if held:
            for step in chosen:
                answers.write_step(step, self._colour)
            output.write("\n")
        return chosen

    def _edit(self, text: str) -> Iterator[Step]:
        turns = self._session.conversation.turns
        if not turns:
            raise SessionError("nothing was asked yet: there is no question to edit")
        return self._session.send(with_files(text), turn=len(turns) - 1)

    def _fork(self, argument: str) -> Iterator[Step]:
        step, _, token = argument.partition(" ")
        if not token:
            raise SessionError("write /fork STEP TOKEN, in numbers that /steps lists")
        return self._session.fork(_whole(step) - 1, _whole(token))

    def _list_steps(self) -> None:
        turns = self._session.conversation.turns
        for step in turns[-1].answer.steps if turns else ():
            others = (other for other in step.top_logprobs if other.token != step.token)
            listed = "  ".join(
                f"{other.token} {_quoted(other.text)} {exp(other.logprob):.0%}" for other in others
            )
            output.write(f"{step.index + 1:4}  {step.token:6} {_quoted(step.text):16} {listed}\n")

    def _select(self, number: str) -> None:
        self._session.select(_whole(number) - 1)
        output.write_text(self._session.messages[-1]["content"] + "\n")


def _lines(interactive: bool) -> Iterator[str]:
    """Yield the lines of stdin that are not empty; Ctrl-C at the prompt ends, as Ctrl-D does."""
    if not interactive:
        while line := sys.stdin.readline(limits.ATTACHED_BYTES + 1):
            if len(line) > limits.ATTACHED_BYTES:
                raise PromptError(f"a line has more than {limits.ATTACHED_BYTES:,} characters")
            if line.strip():
                yield line.strip()
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
        return options.count(text.strip())
    except argparse.ArgumentTypeError:
        message = f"{text!r} is not a number: /help shows what the command takes"
        raise SessionError(message) from None
