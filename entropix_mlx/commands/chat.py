"""`entropix chat`: the terminal UI; with --plain, a conversation line by line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from ..backends.address import KEY_VARIABLE, Address
from ..errors import PromptError, SettingsError
from ..files import expanded
from ..traces.trace import TraceFolder
from .shared import (
    arg_types,
    draft_option,
    model_options,
    notes_option,
    options,
    output,
)

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel

ALTERNATIVES = 8
"""Most probable tokens that the terminal UI shows for each token."""
PLAIN_ALTERNATIVES = 3
"""Most probable tokens that /steps lists for each token, with --plain."""


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    options.add_model(parser)
    parser.add_argument("--plain", action="store_true", help="line by line, without a full screen")
    parser.add_argument(
        "--demo", action="store_true", help="play a recorded session, without a model"
    )
    parser.add_argument(
        "--no-save", action="store_true", help="do not keep this chat (the terminal UI keeps all)"
    )
    parser.add_argument("--system-prompt", help="instructions that precede the conversation")
    parser.add_argument(
        "--trace",
        type=arg_types.file,
        metavar="DIR",
        help="record every answer in a file of this folder as it comes",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        help="converse with the model of an entropix serve, as at http://127.0.0.1:8080"
        f" (its key in {KEY_VARIABLE})",
    )
    options.add_settings(parser)
    notes_option.add_option(parser)
    draft_option.add_options(parser)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Converse on a full screen, or line by line."""
    draft_option.check(arguments)
    if arguments.demo or arguments.server is not None:
        pass_over_configured(arguments)
    if arguments.demo:
        _check_demo(arguments)
        return run_demo(arguments)
    server = _server(arguments)
    _check_screen(arguments)
    return run_plain(arguments) if arguments.plain else run_screen(arguments, server)


def run_screen(arguments: argparse.Namespace, server: Address | None = None) -> int:
    """Open the terminal UI."""
    output.check_screen("add --plain in a pipe")
    from tui.app import run_chat
    from tui.terminal import require_full_screen

    from ..backends.local import Chat
    from ..chat.store import Store

    require_full_screen("add --plain")
    settings = options.to_settings(arguments, ALTERNATIVES)

    def load(model: str | None) -> tuple[LanguageModel, TokenizerWrapper]:
        from ..checkpoints.loading import load

        # What was asked for beside the model fits that one, and not another that is picked later.
        asked = model_options.of_model(arguments) if model == arguments.model else None
        return load(model, dequantize=arguments.dequantize, extras=asked)

    name = options.model_name(arguments) if server is None else server.url
    traces = _trace_folder(arguments)
    chat = Chat(
        name,
        lambda: load(arguments.model),
        settings,
        arguments.system_prompt,
        arguments.ask,
        traces,
        server,
        load_named=load,
        notes=notes_option.opened(arguments),
        load_draft=partial(draft_option.load_draft, arguments),
    )
    return run_chat(chat, None if arguments.no_save else Store(), arguments.configuration)


def _check_screen(arguments: argparse.Namespace) -> None:
    """Refuse a mistake in what a configuration file says of the screen, also where none is shown.

    Raises:
        ConfigurationError: there is one.
    """
    configuration = arguments.configuration
    if configuration and (configuration.theme is not None or configuration.keys):
        from tui.app import ChatApp  # slow to import, and needed for little

        ChatApp.check(configuration)


def pass_over_configured(arguments: argparse.Namespace) -> None:
    """Leave out what only the configuration file asks for and a recording or a server cannot do."""
    configured = arguments.configuration.options if arguments.configuration else {}
    for name in ("model", "trace", "ask"):
        value = configured.get(name)
        parsed = expanded(str(value), SettingsError) if name == "trace" else value
        if value and str(getattr(arguments, name)) == str(parsed):
            setattr(arguments, name, False if name == "ask" else None)


def _check_demo(arguments: argparse.Namespace) -> None:
    """Refuse what a recording cannot do."""
    given = {
        "--plain": arguments.plain,
        "--server": arguments.server,
        "--model": arguments.model,
        "--draft-model": arguments.draft_model,
        "--trace": arguments.trace,
        "--notes": arguments.notes,
    }
    for option, value in given.items():
        if value:
            raise SettingsError(f"--demo plays a recording on the full screen: leave {option} out")


def run_demo(arguments: argparse.Namespace) -> int:
    """Open the terminal UI on what was recorded."""
    output.check_screen("the demo cannot be shown in a pipe")
    from tui.app import run_chat
    from tui.terminal import require_full_screen

    from ..backends.recorded import demo_chat

    require_full_screen("use a terminal that can")
    chat = demo_chat(options.to_settings(arguments, ALTERNATIVES))
    return run_chat(chat, None, arguments.configuration)


def _server(arguments: argparse.Namespace) -> Address | None:
    """Return the address of the server, after refusing what cannot be done there."""
    if arguments.server is None:
        return None
    from ..backends.remote import NO_ASKING, NO_TRACE

    for name, reason in (("ask", NO_ASKING), ("trace", NO_TRACE)):
        if getattr(arguments, name):
            raise SettingsError(reason)
    if arguments.notes is not None:
        raise SettingsError("the server cannot look things up in your notes: leave --notes out")
    if arguments.plain or arguments.model is not None or arguments.draft_model is not None:
        raise SettingsError("--server is for the full screen, and the server has its own model")
    return Address(arguments.server, os.environ.get(KEY_VARIABLE) or None)


def run_plain(arguments: argparse.Namespace) -> int:
    """Converse until the end of stdin."""
    if sys.stdin is None:
        raise PromptError("there is no stdin to read questions from: use entropix generate")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # do not stop at bytes that are not UTF-8
    settings = options.to_settings(arguments, PLAIN_ALTERNATIVES)
    traces = _trace_folder(arguments)
    notes = notes_option.opened(arguments)
    model, tokenizer = options.load_model(arguments)
    if arguments.verbose:
        options.hint_at_calibration(settings, settings.resolved(model.config))
    from ..chat.session import Session
    from .chat_plain import PlainChat, tell_dropped

    session = Session(
        model,
        tokenizer,
        settings,
        system_prompt=arguments.system_prompt,
        on_prefill=output.prefill_progress(arguments.verbose),
        on_drop=tell_dropped,
        choose=output.ask if arguments.ask else None,
        traces=traces,
    )
    session.notes = notes
    session.draft_model = draft_option.load_draft(arguments, model, tokenizer)
    return PlainChat(session, arguments.verbose, arguments.color).run()


def _trace_folder(arguments: argparse.Namespace) -> TraceFolder | None:
    if arguments.trace is None:
        return None
    return TraceFolder(arguments.trace, options.model_name(arguments))
