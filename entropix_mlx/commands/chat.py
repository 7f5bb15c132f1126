"""`entropix chat`: the terminal UI; with --plain, a conversation line by line."""

from __future__ import annotations

import argparse
import io
import sys
from typing import TYPE_CHECKING

from ..errors import PromptError
from ..traces.trace import TraceFolder
from . import options, terminal

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.llama import Model

ALTERNATIVES = 8
"""Most probable tokens that the terminal UI shows for each token."""
PLAIN_ALTERNATIVES = 3
"""Most probable tokens that /steps lists for each token, with --plain."""


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    options.add_model(parser)
    parser.add_argument("--plain", action="store_true", help="line by line, without a full screen")
    parser.add_argument("--system-prompt", help="instructions that precede the conversation")
    parser.add_argument(
        "--trace",
        type=options.file,
        metavar="DIR",
        help="record every answer in a file of this folder as it comes",
    )
    options.add_settings(parser)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Converse on a full screen, or line by line."""
    return run_plain(arguments) if arguments.plain else run_screen(arguments)


def run_screen(arguments: argparse.Namespace) -> int:
    """Open the terminal UI."""
    terminal.check_screen("add --plain in a pipe")
    from tui.app import run_chat
    from tui.terminal import require_full_screen

    from ..serving.worker import Chat

    require_full_screen("add --plain")
    settings = options.to_settings(arguments, ALTERNATIVES)

    def load() -> tuple[Model, TokenizerWrapper]:
        from ..checkpoints.loading import load

        return load(arguments.model, dequantize=arguments.dequantize)

    name = options.model_name(arguments)
    traces = _trace_folder(arguments)
    chat = Chat(name, load, settings, arguments.system_prompt, arguments.ask, traces)
    run_chat(chat)
    return 0


def run_plain(arguments: argparse.Namespace) -> int:
    """Converse until the end of stdin."""
    if sys.stdin is None:
        raise PromptError("there is no stdin to read questions from: use entropix generate")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # do not stop at bytes that are not UTF-8
    settings = options.to_settings(arguments, PLAIN_ALTERNATIVES)
    traces = _trace_folder(arguments)
    model, tokenizer = options.load_model(arguments)
    if arguments.verbose:
        options.hint_at_calibration(settings, settings.resolved(model.config))
    from ..chat.session import Session
    from .plain import PlainChat, tell_dropped

    session = Session(
        model,
        tokenizer,
        settings,
        system_prompt=arguments.system_prompt,
        on_prefill=terminal.prefill_progress(arguments.verbose),
        on_drop=tell_dropped,
        choose=terminal.ask if arguments.ask else None,
        traces=traces,
    )
    return PlainChat(session, arguments.verbose, arguments.color).run()


def _trace_folder(arguments: argparse.Namespace) -> TraceFolder | None:
    if arguments.trace is None:
        return None
    return TraceFolder(arguments.trace, options.model_name(arguments))
