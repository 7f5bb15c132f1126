"""`entropix generate`: answer one prompt."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import PromptError
from ..palette import paint_step
from ..step import Step
from ..summary import Summary
from ..trace import Header, recorded
from . import INTERRUPTED, options, terminal

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..llama import Model
    from ..settings import Settings


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    add("--prompt", "-p", required=True, help="what to ask; - reads it from stdin")
    add("--system-prompt", help="instructions that precede the prompt")
    add("--ignore-chat-template", action="store_true", help="continue the bare prompt text")
    options.add_settings(parser)
    add("--top-logprobs", type=options.count, default=0, metavar="N",
        help="list the N most probable tokens of each step (with --jsonl)")  # fmt: skip
    add("--trace", metavar="FILE", help="record every step in a file as it goes (JSON Lines)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one object with text and totals")
    form.add_argument("--jsonl", action="store_true", help="print one step a line, measured")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer one prompt."""
    prompt = _read_prompt(arguments.prompt)
    settings = options.to_settings(arguments, arguments.top_logprobs)
    if settings.seed is None:
        settings = replace(settings, seed=secrets.randbits(32))
    model, tokenizer = options.load_model(arguments)
    if arguments.verbose:
        options.hint_at_calibration(settings, model)
    tokens = _encode(tokenizer, prompt, arguments)
    from ..generation import stream_generate

    steps: Iterator[Step] = stream_generate(
        model,
        tokenizer,
        tokens,
        **vars(settings),
        on_prefill=terminal.prefill_progress(arguments.verbose),
        choose=terminal.ask if arguments.ask else None,
    )
    if arguments.trace:
        header = _header(arguments, settings, model, prompt, len(tokens))
        steps = recorded(steps, arguments.trace, header)
    summary = Summary(prompt_tokens=len(tokens))
    colour = terminal.wants_colour(arguments.color, sys.stdout)
    code = 0
    try:
        for step in steps:
            summary.add(step)
            if arguments.jsonl:
                terminal.write(json.dumps(step.to_dict(), ensure_ascii=False) + "\n")
            elif not arguments.json:
                terminal.write(paint_step(step) if colour else step.text)
    except KeyboardInterrupt:
        summary.finish_reason = "interrupted"
        code = INTERRUPTED
    if arguments.json:
        record = summary.to_dict() | {"seed": settings.seed}
        terminal.write(json.dumps(record, ensure_ascii=False, indent=2) + "\n")
    elif not arguments.jsonl:
        terminal.write("\n")
    if arguments.verbose:
        colour = terminal.wants_colour(arguments.color, sys.stderr)
        terminal.print_statistics(summary, settings.seed or 0, colour)
    return code


def _header(
    arguments: argparse.Namespace,
    settings: Settings,
    model: Model,
    prompt: str,
    prompt_tokens: int,
) -> Header:
    messages = [{"role": "user", "content": prompt}]
    if arguments.system_prompt is not None:
        messages.insert(0, {"role": "system", "content": arguments.system_prompt})
    return Header(
        model=options.model_name(arguments),
        sampler=settings.sampler,
        profile=settings.policy(model.config).profile,
        seed=settings.seed or 0,
        messages=messages,
        context_length=model.config.max_position_embeddings,
        prompt_tokens=prompt_tokens,
    )


def _read_prompt(argument: str) -> str:
    if argument != "-":
        # Bytes that are not UTF-8 arrive as lone surrogates, which no tokenizer can encode.
        return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if sys.stdin is None:
        raise PromptError("there is no stdin to read the prompt from: give --prompt a text")
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _encode(tokenizer: TokenizerWrapper, prompt: str, arguments: argparse.Namespace) -> list[int]:
    from ..prompts import chat_prompt, text_prompt

    if not arguments.ignore_chat_template:
        return chat_prompt(tokenizer, prompt, arguments.system_prompt)
    if arguments.system_prompt is not None:
        raise PromptError(
            "--system-prompt needs the chat template that --ignore-chat-template skips"
        )
    return text_prompt(tokenizer, prompt)
