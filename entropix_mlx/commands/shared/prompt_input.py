"""What commands that show one text share: the prompt, its tokens, the steps, a trace's header."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...chat.conversation import Conversation, Turn
from ...errors import PromptError
from ...profiles.profile import Profile
from ...step import Step
from ...traces.trace import Header
from . import arg_types, options, output

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...models.base import LanguageModel
    from ...settings import Settings


def add_prompt(parser: argparse.ArgumentParser, file: bool = False) -> None:
    """Add the options that say what to answer: one prompt, or a file of them if there may be."""
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", "-p", help="what to ask; - reads it from stdin")
    if file:
        what.add_argument(
            "--prompts",
            type=arg_types.file,
            metavar="FILE",
            help="answer every line of a file; a .jsonl has prompt or messages and options of its"
            " own, a .csv a header that names them",
        )
    add("--system-prompt", help="instructions that precede the prompt")
    add("--ignore-chat-template", action="store_true", help="continue the bare prompt text")


def read_prompt(argument: str) -> str:
    """Return the prompt that the option --prompt gives; ``-`` reads it from stdin.

    Raises:
        PromptError: there is no stdin, or nothing in it.
    """
    prompt = _read(argument)
    if not prompt:
        raise PromptError("the prompt is empty: write a question")
    return prompt


def _read(argument: str) -> str:
    if argument != "-":
        # Bytes that are not UTF-8 arrive as lone surrogates, which no tokenizer can encode.
        return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if sys.stdin is None:
        raise PromptError("there is no stdin to read the prompt from: give --prompt a text")
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def encode_prompt(
    tokenizer: TokenizerWrapper, prompt: str, arguments: argparse.Namespace
) -> list[int]:
    """Return the tokens of a prompt, in the chat template unless the options say otherwise.

    Raises:
        PromptError: the prompt is empty, or the template refuses it.
    """
    from ...api.prompts import chat_prompt, text_prompt

    if not arguments.ignore_chat_template:
        return chat_prompt(tokenizer, prompt, arguments.system_prompt)
    if arguments.system_prompt is not None:
        raise PromptError(
            "--system-prompt needs the chat template that --ignore-chat-template skips"
        )
    return text_prompt(tokenizer, prompt)


def show_steps(
    steps: Iterable[Step], arguments: argparse.Namespace, count: Callable[[Step], None]
) -> bool:
    """Print steps as they come, in the form that was asked for; return whether ^C ended that.

    Args:
        steps: of an answer, or of a text that is read.
        arguments: with the options --json, --jsonl and those of `options.add_output`.
        count: called with each step before it is printed.
    """
    colour = output.wants_colour(arguments.color, sys.stdout)
    try:
        for step in steps:
            count(step)
            if arguments.jsonl:
                output.write_json(step.to_dict())
            elif not arguments.json:
                output.write_step(step, colour)
    except KeyboardInterrupt:
        return True
    return False


def trace_header(
    arguments: argparse.Namespace,
    settings: Settings,
    prompt: str | None,
    tokens: list[int],
    model: LanguageModel,
) -> Header:
    """Return the header for the trace of an answer, or of a text that answers nothing.

    Args:
        arguments: the options.
        settings: resolved.
        prompt: the question, if there is one.
        tokens: what precedes the answer.
        model: from `load`.
    """
    turns = [] if prompt is None else [Turn(prompt)]
    return Header(
        model=options.model_name(arguments),
        sampler=settings.sampler,
        profile=Profile.load(settings.profile),
        seed=settings.seed or 0,
        messages=Conversation(arguments.system_prompt, turns).messages,
        context_length=model.config.max_position_embeddings,
        prompt_tokens=len(tokens),
        options=settings.options,
        notes=_notes(arguments),
    )


def _notes(arguments: argparse.Namespace) -> str:
    """Return the folder of notes that an answer may quote; a text that is read quotes none."""
    folder = getattr(arguments, "notes", None)
    return "" if folder is None else str(folder.absolute())
