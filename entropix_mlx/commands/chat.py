"""`entropix chat`: the terminal UI; with --plain, a conversation line by line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from .. import limits
from ..chat.attachments import with_files
from ..chat.remote import KEY_VARIABLE, NO_ASKING, NO_TRACE, Address, RemoteBackend
from ..configuration import Configuration
from ..errors import EntropixError, PromptError, SettingsError
from ..profiles.fields import overlaid
from ..profiles.sections import MOST_FORKS
from ..settings import Settings
from ..step import Step
from ..summary import Summary
from ..traces.trace import TraceFolder
from .shared import answers, loading, output
from .shared.options import FIRST, Color, File, ModelOptions, command, without
from .shared.output import USAGE

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..chat.local import Session
    from ..chat.thread import LocalBackend
    from ..models.base import LanguageModel

ALTERNATIVES = 8
"""Most probable tokens that are recorded for each token, and shown by the terminal UI."""
NEW, QUIT = "/new", "/quit"
"""The commands of --plain."""
HINT = f"write a question; {NEW} begins another chat, Ctrl-C stops an answer, {QUIT} ends"


@command(*without("top_logprobs"), loops="stop", top_logprobs=ALTERNATIVES)
def chat(
    *,
    model: ModelOptions = ModelOptions(),
    plain: Annotated[bool, Parameter(group=FIRST)] = False,
    demo: Annotated[bool, Parameter(group=FIRST)] = False,
    server: Annotated[str | None, Parameter(group=FIRST)] = None,
    system_prompt: Annotated[str | None, Parameter(group=FIRST)] = None,
    settings: Settings,
    no_save: bool = False,
    trace: File = None,
    ask: bool = False,
    notes: File = None,
    color: Color = "auto",
    configuration: Configuration,
) -> int:
    """Converse with a model, and watch it.

    Args:
        plain: converse line by line, without a full screen
        demo: play a recorded session, without a model
        server: converse with the model of an entropix serve, as at http://127.0.0.1:8080 (its key
            in ENTROPIX_API_KEY)
        system_prompt: instructions that precede the conversation
        no_save: do not save this chat
        trace: record every answer in a file of this folder
        ask: choose the branch yourself where scores are close
        notes: quote passages from the texts in this folder where the model is uncertain
        color: colour tokens by strategy (auto: on a terminal)
    """
    if demo:
        stated = {"--plain": plain, "--server": server, "--model": model.model}
        for name, given in (stated | {"--trace": trace, "--notes": notes}).items():
            if given:
                raise SettingsError(
                    f"--demo plays a recording on the full screen: leave {name} out"
                )
        return _show_demo(settings, configuration)
    if server is not None:
        refused = {NO_ASKING: ask, NO_TRACE: trace}
        refused["the server cannot search your notes: leave --notes out"] = notes
        own = "--server is for the full screen, and the server has its own model"
        for why, given in (refused | {own: plain or model.model}).items():
            if given:
                raise SettingsError(why)
    forks = {"branch": {"max_branches": MOST_FORKS}}  # they are for those who watch
    settings = replace(settings, changes=overlaid(forks, settings.changes))
    if configuration.theme or configuration.colours or configuration.keys:
        from entropix_mlx.tui.app import ChatApp  # slow to import, and needed for little

        ChatApp.check(configuration)  # mistakes are errors also where no screen is shown
    if plain:
        return _converse(model, settings, system_prompt, trace, ask, notes, color)
    output.check_screen("add --plain in a pipe")
    from entropix_mlx.tui.terminal import all_keys, require_full_screen

    from ..chat.store import Store

    require_full_screen("add --plain")
    backend: RemoteBackend | LocalBackend
    if server is not None:
        address = Address(server, os.environ.get(KEY_VARIABLE) or None)
        backend = RemoteBackend(address, settings, system_prompt)
    else:
        model = loading.with_model(model)
        backend = _local_backend(model, settings, system_prompt, trace, ask, notes)
    restore = all_keys()  # before what takes long to import
    from entropix_mlx.tui.app import run_chat

    return run_chat(backend, None if no_save else Store(), configuration, restore)


def _show_demo(settings: Settings, configuration: Configuration) -> int:
    output.check_screen("the demo cannot be shown in a pipe")
    from entropix_mlx.tui.terminal import all_keys, require_full_screen

    from ..chat.recorded import RecordedBackend, demo_recording

    require_full_screen("use a terminal that can")
    restore = all_keys()  # before what takes long to import
    from entropix_mlx.tui.app import run_chat

    return run_chat(RecordedBackend(settings, demo_recording()), None, configuration, restore)


def _local_backend(
    chosen: ModelOptions,
    settings: Settings,
    system_prompt: str | None,
    trace: File,
    ask: bool,
    notes: File,
) -> LocalBackend:
    from ..chat.thread import LocalBackend

    def load(model: str | None) -> tuple[LanguageModel, TokenizerWrapper]:
        from ..checkpoints.load import Extras, load

        # The extras fit the model they were asked for with, and not another that is picked later.
        extras = Extras(**chosen.extras) if model == chosen.model else None
        return load(model, extras=extras)

    return LocalBackend(
        chosen.name,
        lambda: load(chosen.model),
        settings,
        system_prompt,
        ask,
        TraceFolder(trace, chosen.name) if trace else None,
        load_named=load,
        notes=loading.open_notes(notes),
    )


def _converse(
    model: ModelOptions,
    settings: Settings,
    system_prompt: str | None,
    trace: File,
    ask: bool,
    notes: File,
    color: Color,
) -> int:
    if sys.stdin is None:
        raise PromptError("there is no stdin to read questions from: use entropix generate")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # do not stop at bytes that are not UTF-8
    model = loading.with_model(model)
    traces = TraceFolder(trace, model.name) if trace else None
    passages = loading.open_notes(notes)
    loaded, tokenizer = loading.load_model(model)
    loading.resolve(settings, loaded)
    from ..chat.local import Session

    session = Session(
        loaded,
        tokenizer,
        settings,
        system_prompt=system_prompt,
        on_prefill=output.prefill_progress(),
        on_drop=_report_dropped,
        choose=answers.choose_branch if ask else None,
        traces=traces,
    )
    session.notes = passages
    return PlainChat(session, color).run()


def _report_dropped(turns: int) -> None:
    output.report(f"(the context is full: the model no longer sees the first {turns} turns)")


class PlainChat:
    """Reads lines, and sends each to the session as a question, unless it is a command."""

    def __init__(self, session: Session, color: str) -> None:
        self._session = session
        self._colour = output.use_colour(color, sys.stdout)

    def run(self) -> int:
        """Read lines to the end of stdin and return the exit code.

        A mistake in a line is reported on stderr. On a terminal the user can correct it, so the
        code is 0; in a pipe nobody can, so it is that of a usage error.
        """
        interactive = sys.stdin.isatty()
        if interactive:
            output.info(HINT)
        mistakes = 0
        for line in _lines(interactive):
            if line == QUIT:
                break
            try:
                self._session.new() if line == NEW else self._answer(line)
            except EntropixError as error:
                output.report_error(str(error))
                mistakes += 1
        return USAGE if mistakes and not interactive else 0

    def _answer(self, line: str) -> None:
        steps = self._session.send(with_files(line))
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
        answers.report_if_unsure(self._session.profile.abstain.verdict(summary.metrics))

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
