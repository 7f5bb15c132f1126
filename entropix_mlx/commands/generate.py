"""`entropix generate`: answer one prompt, or many."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from ..files import check_target
from ..settings import Settings
from ..step import Step
from ..summary import Summary
from ..traces.trace import recorded
from . import asking, cached, drafting, many, options, terminal, values
from .exit_codes import INTERRUPTED


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    asking.add_prompt(parser, file=True)
    cached.add_options(parser)
    many.add_options(parser)
    options.add_settings(parser)
    drafting.add_options(parser)
    options.add_top_logprobs(parser, "with --jsonl or --trace")
    add(
        "--trace",
        type=values.file,
        metavar="FILE",
        help="record every step in a file as it goes (JSON Lines)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one object with text and totals")
    form.add_argument("--jsonl", action="store_true", help="print one step a line, measured")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer one prompt, or many."""
    drafting.check(arguments)
    if many.asked_for(arguments):
        return many.run(arguments)
    if arguments.trace:
        check_target(arguments.trace)
    prompt = asking.read_prompt(arguments.prompt)
    asked = options.to_settings(arguments, arguments.top_logprobs)
    model, tokenizer = options.load_model(arguments)
    draft = drafting.load_draft(arguments, model, tokenizer)
    settings = asked.resolved(model.config)
    if arguments.verbose:
        options.hint_at_calibration(asked, settings)
    cache, tokens = cached.encode(tokenizer, prompt, arguments)
    from ..decoding.generation import stream_generate

    steps: Iterator[Step] = stream_generate(
        model,
        tokenizer,
        tokens,
        settings,
        prompt_cache=cache,
        on_prefill=terminal.prefill_progress(arguments.verbose),
        choose=terminal.ask if arguments.ask else None,
        draft_model=draft,
    )
    if arguments.trace:
        header = asking.trace_header(arguments, settings, prompt, tokens, model)
        steps = recorded(steps, arguments.trace, header)
    summary = Summary(prompt_tokens=len(tokens))
    interrupted = asking.show_steps(steps, arguments, summary.add)
    if interrupted:
        summary.finish_reason = "interrupted"
    _tell_totals(arguments, settings, summary)
    return INTERRUPTED if interrupted else 0


def _tell_totals(arguments: argparse.Namespace, settings: Settings, summary: Summary) -> None:
    """Print what the answer amounts to, and whether it is unsure."""
    verdict = settings.verdict(summary.measured)
    if arguments.json:
        told = {} if verdict is None else {"certainty": verdict.to_dict()}
        terminal.write_json(summary.to_dict() | {"seed": settings.seed} | told, indent=2)
    elif not arguments.jsonl:
        terminal.write("\n")
    if arguments.verbose:
        colour = terminal.wants_colour(arguments.color, sys.stderr)
        terminal.print_statistics(summary, settings.seed or 0, colour)
        terminal.tell_if_unsure(verdict)
