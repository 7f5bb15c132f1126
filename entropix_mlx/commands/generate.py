"""`entropix generate`: answer one prompt, or many."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from ..step import Step
from ..summary import Summary
from ..traces.trace import recorded
from . import asking, many, options, terminal
from .exit_codes import INTERRUPTED


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    asking.add_prompt(parser, file=True)
    many.add_options(parser)
    options.add_settings(parser)
    add(
        "--top-logprobs",
        type=options.count,
        default=0,
        metavar="N",
        help="list the N most probable tokens of each step (with --jsonl or --trace)",
    )
    add(
        "--trace",
        type=options.file,
        metavar="FILE",
        help="record every step in a file as it goes (JSON Lines)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one object with text and totals")
    form.add_argument("--jsonl", action="store_true", help="print one step a line, measured")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer one prompt, or many."""
    if many.asked_for(arguments):
        return many.run(arguments)
    prompt = asking.read_prompt(arguments.prompt)
    asked = options.to_settings(arguments, arguments.top_logprobs)
    model, tokenizer = options.load_model(arguments)
    settings = asked.resolved(model.config)
    if arguments.verbose:
        options.hint_at_calibration(asked, settings)
    tokens = asking.encode_prompt(tokenizer, prompt, arguments)
    from ..decoding.generation import stream_generate

    steps: Iterator[Step] = stream_generate(
        model,
        tokenizer,
        tokens,
        settings,
        on_prefill=terminal.prefill_progress(arguments.verbose),
        choose=terminal.ask if arguments.ask else None,
    )
    if arguments.trace:
        header = asking.trace_header(arguments, settings, prompt, tokens, model)
        steps = recorded(steps, arguments.trace, header)
    summary = Summary(prompt_tokens=len(tokens))
    colour = terminal.wants_colour(arguments.color, sys.stdout)
    code = 0
    try:
        for step in steps:
            summary.add(step)
            if arguments.jsonl:
                terminal.write_json(step.to_dict())
            elif not arguments.json:
                terminal.write_step(step, colour)
    except KeyboardInterrupt:
        summary.finish_reason = "interrupted"
        code = INTERRUPTED
    if arguments.json:
        terminal.write_json(summary.to_dict() | {"seed": settings.seed}, indent=2)
    elif not arguments.jsonl:
        terminal.write("\n")
    if arguments.verbose:
        colour = terminal.wants_colour(arguments.color, sys.stderr)
        terminal.print_statistics(summary, settings.seed or 0, colour)
    return code
