"""`entropix read`: measure a text that is given, as the model sees it; nothing is generated."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import PromptError
from ..files import check_target, keep_source
from ..settings import Settings
from ..step import Step
from ..summary import Summary
from ..traces.trace import recorded
from .shared import (
    arg_types,
    options,
    output,
    prompt_input,
)
from .shared.exit_codes import INTERRUPTED


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("file", metavar="FILE", help="the text, in UTF-8; - reads it from stdin")
    options.add_model(parser)
    add("--prompt", "-p", help="read the text as the answer to this question")
    add("--system-prompt", help="instructions that precede the prompt")
    add("--sampler", default=options.DEFAULT_SAMPLER, help="whose decisions to show")
    options.add_profile(parser)
    options.add_attention_layers(parser)
    options.add_top_logprobs(parser, "with --jsonl or --output")
    add("--split", action="store_true", help="read a text longer than the context in pieces")
    add(
        "--output",
        "-o",
        type=arg_types.file,
        metavar="FILE",
        help="record every token as a trace, for entropix view and report",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one object with the totals")
    form.add_argument("--jsonl", action="store_true", help="print one token a line, measured")
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure a text."""
    if arguments.system_prompt is not None and arguments.prompt is None:
        raise PromptError("--system-prompt precedes a question: give one by --prompt")
    keep_source(arguments.output, arguments.file)
    if arguments.output:
        check_target(arguments.output)
    text = _read(arguments.file)
    if not text:
        name = "stdin" if arguments.file == "-" else arguments.file
        raise PromptError(f"{name} is empty: there is no text to measure")
    asked = Settings(
        sampler=arguments.sampler,
        profile=arguments.profile,
        changes=options.assigned(arguments),
        seed=0,
        attention_layers=arguments.attention_layers,
        top_logprobs=arguments.top_logprobs,
    )
    asked.check()
    model, tokenizer = options.load_model(arguments)
    settings = asked.resolved(model.config).settings
    if arguments.verbose:
        options.hint_at_calibration(asked, settings)
    from ..api.prompts import chat_prompt
    from ..api.score import stream_score, text_tokens

    after = None
    if arguments.prompt is not None:
        after = chat_prompt(tokenizer, arguments.prompt, arguments.system_prompt)
    before, tokens = text_tokens(tokenizer, text, after)
    if arguments.verbose:
        output.tell(f"reading {len(tokens):,} tokens …")
    steps: Iterator[Step] = stream_score(
        model,
        tokenizer,
        tokens,
        settings,
        after=before,
        split=arguments.split,
        on_prefill=output.prefill_progress(arguments.verbose, "the text"),
    )
    if arguments.output:
        header = prompt_input.trace_header(arguments, settings, arguments.prompt, before, model)
        steps = recorded(steps, arguments.output, header)
    return _show(steps, arguments, Totals(len(before)))


def _show(steps: Iterator[Step], arguments: argparse.Namespace, totals: Totals) -> int:
    """Print the steps as they come, or their totals; return the exit code."""
    interrupted = prompt_input.show_steps(steps, arguments, totals.add)
    if interrupted:
        totals.summary.finish_reason = "interrupted"
    if arguments.json:
        output.write_json(totals.to_dict(), indent=2)
    elif not arguments.jsonl and not totals.summary.text.endswith("\n"):
        output.write("\n")
    if arguments.verbose:
        totals.tell(output.wants_colour(arguments.color, sys.stderr))
    return INTERRUPTED if interrupted else 0


class Totals:
    """What the tokens of a text amount to: the summary, and how well they were predicted."""

    def __init__(self, before: int) -> None:
        """Begin.

        Args:
            before: the number of tokens that precede the text.
        """
        self.summary = Summary(prompt_tokens=before)
        self.logprob = 0.0
        """Of the whole text, in nats."""

    def add(self, step: Step) -> None:
        """Count a token."""
        self.summary.add(step)
        self.logprob += step.logprob

    @property
    def perplexity(self) -> float:
        """e to the mean surprise of a token in nats."""
        return math.exp(min(-self.logprob / max(1, self.summary.completion_tokens), 700))

    @property
    def bits_per_byte(self) -> float:
        """Surprise in bits over the length in UTF-8, which no tokenizer changes."""
        length = len(self.summary.text.encode("utf-8", "replace"))
        return -self.logprob / math.log(2) / max(1, length)

    def to_dict(self) -> dict[str, Any]:
        """Return all totals as one record."""
        return self.summary.to_dict() | {
            "logprob": self.logprob,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
        }

    def tell(self, colour: bool) -> None:
        """Print the totals to stderr."""
        summary = self.summary
        lines = [
            "─" * 40,
            output.shares(summary, colour),
            f"entropy {summary.mean_entropy:.2f} bits, varentropy"
            f" {summary.mean_varentropy:.2f} bits² (means)",
            f"{summary.completion_tokens:,} tokens: log p {self.logprob:.1f}, perplexity"
            f" {self.perplexity:.2f}, {self.bits_per_byte:.3f} bits a byte",
        ]
        output.tell("\n".join(lines))


def _read(name: str) -> str:
    """Return the text of a file, or of stdin.

    Raises:
        PromptError: it cannot be read, or is not in UTF-8.
    """
    try:
        if name != "-":
            path = arg_types.file(name)
            return limits.read_text(Path(path), limits.TEXT_BYTES).removeprefix("\ufeff")
        if sys.stdin is None:
            raise PromptError("there is no stdin to read: name a file")
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{name} is not a text in UTF-8: {error.reason}") from error
    except (OSError, ValueError) as error:  # a ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise PromptError(f"cannot read {name}: {reason}") from error
