"""`entropix chat`: the terminal UI; with --plain, a conversation line by line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..answer.hooks import Hooks
from ..chat.attachments import with_files
from ..chat.session import AnswerSource, ChatSession
from ..configuration import KEY_VARIABLE, Configuration
from ..errors import EntropixError, PromptError, SettingsError
from ..profiles.fields import overlaid
from ..profiles.sections import MOST_FORKS
from ..settings import Settings
from ..summary import Summary
from ..traces.trace import TraceFolder
from .shared import display, loading, output
from .shared.options import FIRST, Color, File, ModelOptions, command, without
from .shared.output import USAGE

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..chat.local import Session
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
    mine = {"--plain": plain, "--model": model.model, "--trace": trace, "--notes": notes}
    if demo:
        _refuse("--demo", mine | {"--server": server})
    elif server is not None:
        _refuse("--server", mine | {"--ask": ask})
    elif plain:
        _refuse("--plain", {"--ask": ask, "--answers": settings.answers != 1})
    forks = {"branch": {"max_branches": MOST_FORKS}}  # they are for those who watch
    settings = replace(settings, changes=overlaid(forks, settings.changes))
    if configuration.theme or configuration.colours or configuration.keys:
        from entropix_mlx.tui.app import ChatApp  # slow to import, and needed for little

        ChatApp.check(configuration)  # mistakes are errors also where no screen is shown
    if plain:
        return _converse(model, settings, system_prompt, trace, notes, color)
    output.check_screen("add --plain")
    from entropix_mlx.tui.terminal import all_keys

    from ..chat.store import Store

    if not (demo or server):
        model = loading.with_model(model)
    restore = all_keys()  # before what takes long to import
    source: AnswerSource
    if demo:
        from ..chat.recorded import RecordedSource, demo_recording

        source = RecordedSource(demo_recording())
    elif server is not None:
        from ..chat.remote import RemoteSource

        source = RemoteSource(server, os.environ.get(KEY_VARIABLE) or None)
    else:
        from ..chat.local import LocalSource

        source = LocalSource(
            model.name,
            partial(_load, model, model.model),
            load_named=partial(_load, model),
            traces=TraceFolder(trace, model.name) if trace else None,
            notes=loading.open_notes(notes),
        )
    from entropix_mlx.tui.app import run_chat

    session = ChatSession(source, settings, system_prompt)
    return run_chat(session, None if no_save or demo else Store(), configuration, restore, ask)


def _refuse(option: str, others: dict[str, Any]) -> None:
    for other, value in others.items():
        if value:
            raise SettingsError(f"{option} and {other} do not go together: leave {other} out")


def _load(chosen: ModelOptions, model: str | None) -> tuple[LanguageModel, TokenizerWrapper]:
    """Load a model: with the options of the command, unless another one was picked since."""
    from ..checkpoints.load import load

    return load(model, extras=loading.extras(chosen) if model == chosen.model else None)


def _converse(
    model: ModelOptions,
    settings: Settings,
    system_prompt: str | None,
    trace: File,
    notes: File,
    color: Color,
) -> int:
    """Answer the lines of stdin and return the exit code.

    A mistake in a line is reported on stderr. On a terminal the user can correct it, so the code is
    0; in a pipe nobody can, so it is that of a usage error.
    """
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
        hooks=Hooks(on_prefill=output.progress("reading the prompt", unit=" tokens")),
        traces=traces,
        notes=passages,
    )
    session.on_drop = lambda turns: output.report(
        f"(the context is full: the model no longer sees the first {turns} turns)"
    )
    interactive, mistakes = sys.stdin.isatty(), 0
    if interactive:
        output.info(HINT)
    for line in _lines(interactive):
        if line == QUIT:
            break
        try:
            session.new() if line == NEW else _answer(session, line, color)
        except EntropixError as error:
            output.report_error(str(error))
            mistakes += 1
    return USAGE if mistakes and not interactive else 0


def _answer(session: Session, line: str, color: Color) -> None:
    colour, summary = output.use_colour(color, sys.stdout), Summary()
    try:
        for step in session.send(with_files(line)):
            summary.add(step)
            display.write_step(step, colour)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    finally:
        session.close()
        output.write("\n")
    about = [
        display.strategies(summary, colour),
        summary.interventions,
        f"ended: {summary.ending}" if summary.stopped else "",
        f"{summary.tokens_per_second:.1f} tokens/s",
    ]
    output.info(f"({'; '.join(filter(None, about))})")
    for value in display.constrained(summary):
        output.info(value)
    display.report_if_unsure(session.profile.abstain.verdict(summary.metrics))


def _lines(interactive: bool) -> Iterator[str]:
    """Yield the lines of stdin that are not empty; Ctrl-C at the prompt ends, as Ctrl-D does."""
    if not interactive:
        yield from filter(None, map(str.strip, sys.stdin))
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
