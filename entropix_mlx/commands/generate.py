"""`entropix generate`: answer one prompt, or many."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from ..files import check_target
from ..profiles.profile import Profile
from ..settings import Settings
from ..step import Step
from ..summary import Summary
from ..traces.trace import recorded
from . import generate_many
from .shared import (
    arg_types,
    draft_option,
    notes_option,
    options,
    output,
    prompt_cache,
    prompt_input,
)
from .shared.exit_codes import INTERRUPTED


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    prompt_input.add_prompt(parser, file=True)
    prompt_cache.add_options(parser)
    generate_many.add_options(parser)
    options.add_settings(parser)
    notes_option.add_option(parser)
    draft_option.add_options(parser)
    options.add_top_logprobs(parser, "with --jsonl or --trace")
    add(
        "--trace",
        type=arg_types.file,
        metavar="FILE",
        help="record every step in a file as it goes (JSON Lines)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one object with text and totals")
    form.add_argument("--jsonl", action="store_true", help="print one step a line, measured")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer one prompt, or many."""
    draft_option.check(arguments)
    if generate_many.asked_for(arguments):
        return generate_many.run(arguments)
    if arguments.trace:
        check_target(arguments.trace)
    prompt = prompt_input.read_prompt(arguments.prompt)
    asked = options.to_settings(arguments, arguments.top_logprobs)
    notes = notes_option.opened(arguments)
    model, tokenizer = options.load_model(arguments)
    draft = draft_option.load_draft(arguments, model, tokenizer)
    settings = asked.resolved(model.config).settings
    if arguments.verbose:
        options.hint_at_calibration(asked, settings)
    cache, tokens = prompt_cache.encode(tokenizer, prompt, arguments)
    from ..api.generate import stream_generate

    steps: Iterator[Step] = stream_generate(
        model,
        tokenizer,
        tokens,
        settings,
        prompt_cache=cache,
        on_prefill=output.prefill_progress(arguments.verbose),
        choose=output.ask if arguments.ask else None,
        retrieve=notes_option.about(notes, prompt),
        draft_model=draft,
    )
    if arguments.trace:
        header = prompt_input.trace_header(arguments, settings, prompt, tokens, model)
        steps = recorded(steps, arguments.trace, header)
    summary = Summary(prompt_tokens=len(tokens))
    interrupted = prompt_input.show_steps(steps, arguments, summary.add)
    if interrupted:
        summary.finish_reason = "interrupted"
    _tell_totals(arguments, settings, summary)
    return INTERRUPTED if interrupted else 0


def _tell_totals(arguments: argparse.Namespace, settings: Settings, summary: Summary) -> None:
    """Print what the answer amounts to, and whether it is unsure."""
    verdict = Profile.load(settings.profile).abstain.verdict(summary.metrics)
    if arguments.json:
        told = {} if verdict is None else {"certainty": verdict.to_dict()}
        output.write_json(summary.to_dict() | {"seed": settings.seed} | told, indent=2)
    elif not arguments.jsonl:
        output.write("\n")
    if arguments.verbose:
        colour = output.wants_colour(arguments.color, sys.stderr)
        output.print_statistics(summary, settings.seed or 0, colour)
        output.tell_if_unsure(verdict)
