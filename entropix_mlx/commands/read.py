"""`entropix read`: measure a text that is given, as the model sees it; nothing is generated."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import PromptError
from ..files import check_target, keep_source, reading
from ..settings import Settings
from ..step import Step
from ..summary import Summary
from ..traces.trace import recorded
from .shared import answers, loading, options, output, prompts
from .shared.options import ModelOptions, OutputOptions


@dataclass(frozen=True)
class ReadRequest:
    """Which text is measured, and how."""

    file: str
    """``"-"`` reads stdin."""
    model: ModelOptions
    settings: Settings
    output: OutputOptions
    prompt: str | None
    """The question that the text answers."""
    system_prompt: str | None
    split: bool
    trace: Path | None
    attention_map: bool


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("file", metavar="FILE", help="the text, in UTF-8; - reads it from stdin")
    options.add_model(parser)
    add("--prompt", "-p", help="the question that the text answers")
    add("--system-prompt", help="instructions that precede the prompt")
    add(
        "--sampler",
        default=options.DEFAULT_SAMPLER,
        help="sampler whose decisions are shown (default: %(default)s)",
    )
    options.add_profile(parser)
    options.add_attention_layers(parser)
    options.add_top_logprobs(parser, "with --jsonl or --output")
    add("--split", action="store_true", help="read a text longer than the context in pieces")
    what = "record every token as a trace, for entropix view and report"
    add("--output", "-o", type=options.file, metavar="FILE", help=what)
    options.add_attention_map(parser, "--output")
    options.add_output(
        parser,
        totals="print one JSON object with the totals",
        steps="print each token with its metrics as a line of JSON",
    )


def parse_request(arguments: argparse.Namespace) -> ReadRequest:
    if arguments.system_prompt is not None and arguments.prompt is None:
        raise PromptError("--system-prompt precedes a question: give one by --prompt")
    if arguments.attention_map and not arguments.output:
        raise PromptError("--attention-map is recorded in a trace: name its file by --output")
    if arguments.attention_map and arguments.split:
        raise PromptError("--attention-map needs the text in one piece: leave --split out")
    keep_source(arguments.output, arguments.file)
    if arguments.output:
        check_target(arguments.output)
    return ReadRequest(
        file=arguments.file,
        model=options.model_options(arguments),
        settings=options.to_settings(arguments, seed=0),
        output=options.output_options(arguments),
        prompt=arguments.prompt,
        system_prompt=arguments.system_prompt,
        split=arguments.split,
        trace=arguments.output,
        attention_map=arguments.attention_map,
    )


def run(arguments: argparse.Namespace) -> int:
    request = parse_request(arguments)
    text = _read(request.file)
    if not text:
        name = "stdin" if request.file == "-" else request.file
        raise PromptError(f"{name} is empty: there is no text to measure")
    model, tokenizer = loading.load_model(request.model)
    settings = loading.resolve(request.settings, model).settings
    from ..api.attention import attention_to
    from ..api.prompts import chat_prompt
    from ..api.score import stream_score, text_tokens

    question = None
    if request.prompt is not None:
        question = chat_prompt(tokenizer, request.prompt, request.system_prompt)
    before, tokens = text_tokens(tokenizer, text, question)
    output.info(f"reading {len(tokens):,} tokens …")
    steps: Iterator[Step] = stream_score(
        model,
        tokenizer,
        tokens,
        settings,
        after=before,
        split=request.split,
        on_prefill=output.prefill_progress("the text"),
    )
    if request.trace:
        header = prompts.trace_header(
            model, request.model.name, settings, before, request.prompt, request.system_prompt
        )
        looked = attention_to(model, before) if request.attention_map else None
        steps = recorded(steps, request.trace, header, attention=looked)
    return _show(steps, request.output, Summary(len(before)))


def _show(steps: Iterator[Step], form: OutputOptions, summary: Summary) -> int:
    code = answers.show_steps(steps, form, summary)
    totals = _predictability(summary)
    if form.json:
        output.write_json(summary.to_dict() | totals, indent=2)
    elif not (form.jsonl or summary.text.endswith("\n")):
        output.write("\n")
    answers.print_statistics(
        summary,
        form.color,
        f"{summary.completion_tokens:,} tokens: log p {totals['logprob']:.1f}, perplexity"
        f" {totals['perplexity']:.2f}, {totals['bits_per_byte']:.3f} bits per byte",
    )
    return code


def _predictability(summary: Summary) -> dict[str, Any]:
    """Return how well the tokens were predicted; `logprob` is in nats."""
    logprob = math.fsum(summary.metrics.logprob)
    length = len(summary.text.encode("utf-8", "replace"))
    return {
        "logprob": logprob,
        "perplexity": summary.scores.get("perplexity", 1.0),
        "bits_per_byte": -logprob / math.log(2) / max(1, length),
    }


def _read(name: str) -> str:
    if name != "-":
        return limits.read_named(name, limits.TEXT_BYTES, PromptError)
    with reading("stdin", PromptError):
        return limits.read_stdin(PromptError).decode("utf-8")
