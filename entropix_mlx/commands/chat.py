"""`entropix chat`: the terminal UI; with --plain, a conversation line by line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..answer.hooks import Hooks
from ..chat.attachments import with_files
from ..chat.session import AnswerSource, ChatSession
from ..configuration import KEY_VARIABLE, Configuration
from ..errors import EntropixError, PromptError, SettingsError
from ..notes import Notes
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
    if demo or server is not None:
        typed: dict[str, object] = {"--model": model.model, "--trace": trace, "--notes": notes}
        typed |= {"--server": server} if demo else {"--ask": ask}
        for option, value in typed.items():
            if value:
                kind = "--demo" if demo else "--server"
                raise SettingsError(f"{kind} and {option} do not go together: leave {option} out")
    if plain and (ask or settings.answers != 1):
        raise SettingsError(
            "--plain shows one answer, and asks nothing: leave --answers out, and --ask"
        )
    forks = {"branch": {"max_branches": MOST_FORKS}}  # they are for those who watch
    settings = replace(settings, changes=overlaid(forks, settings.changes))
    if configuration.theme or configuration.colours or configuration.keys:
        from entropix_mlx.tui.app import ChatApp  # slow to import, and needed for little

        ChatApp.check(configuration)  # mistakes are errors also where no screen is shown
    if not plain:
        output.check_screen("add --plain")
    source: AnswerSource
    if demo:
        from ..chat.recorded import RecordedSource, demo_recording

        source = RecordedSource(demo_recording())
    elif server is not None:
        from ..chat.remote import RemoteSource

        source = RemoteSource(server, os.environ.get(KEY_VARIABLE) or None)
    else:
        model = loading.with_model(model)
        traces = TraceFolder(trace, model.name) if trace else None
        passages = Notes(notes) if notes else None
        from ..chat.local import LocalSource

        source = LocalSource(
            model.name,
            partial(_load, model, model.model),
            load_named=partial(_load, model),
            traces=traces,
            notes=passages,
        )
    session = ChatSession(source, settings, system_prompt)
    if plain:
        return _converse(session, color)
    from entropix_mlx.tui.terminal import all_keys

    from ..chat.store import Store

    restore = all_keys()  # before what takes long to import
    from entropix_mlx.tui.app import run_chat

    return run_chat(session, None if no_save or demo else Store(), configuration, restore, ask)


def _load(chosen: ModelOptions, model: str | None) -> tuple[LanguageModel, TokenizerWrapper]:
    """Load a model: with the options of the command, unless another one was picked since."""
    from ..api.learned import learn
    from ..checkpoints.load import load

    extras = loading.extras(chosen) if model == chosen.model else None
    loaded = load(model, extras=extras, chat=True)
    learn(loaded[0])
    return loaded


def _converse(session: ChatSession, color: Color) -> int:
    """Answer the lines of stdin and return the exit code.

    A mistake in a line is reported on stderr. On a terminal the user can correct it, so the code is
    0; in a pipe nobody can, so it is that of a usage error.
    """
    if sys.stdin is None:
        raise PromptError("there is no stdin to read questions from: use entropix generate")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # do not stop at bytes that are not UTF-8
    output.info(f"loading {output.shortened(session.source.model)} …")
    session.source.open()
    session.hooks = Hooks(on_prefill=output.progress("reading the prompt", unit=" tokens"))
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
            if line == NEW:
                session.new()
            elif line:
                _answer(session, line, color)
            elif session.offers_thresholds:
                session.accept_thresholds()
                output.info(f"using the profile {session.profile.name}")
        except EntropixError as error:
            output.report_error(str(error))
            mistakes += 1
    return USAGE if mistakes and not interactive else 0


def _answer(session: ChatSession, line: str, color: Color) -> None:
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
    if session.offers_thresholds and sys.stdin.isatty():
        output.info("thresholds for this model are ready: Enter uses them")


def _lines(interactive: bool) -> Iterator[str]:
    """Yield the lines of stdin, of a pipe without the empty ones."""
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() a history and editing
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return
        if line or interactive:
            yield line
