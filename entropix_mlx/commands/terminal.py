"""Writing to a terminal or a pipe: text to stdout, everything about it to stderr."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

from ..palette import LOOKS, paint, paint_step, printable
from ..step import Branch, Step
from ..summary import Summary


def write(text: str) -> None:
    """Print to stdout at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_text(text: str) -> None:
    """Print what a model wrote to stdout at once, by `shown`."""
    write(shown(text, sys.stdout))


def write_step(step: Step, colour: bool) -> None:
    """Print a step's text to stdout at once, by `shown`."""
    step = replace(step, text=shown(step.text, sys.stdout))
    write(paint_step(step) if colour else step.text)


def shown(text: str, stream: TextIO) -> str:
    """Return what a model wrote as a stream takes it: a file gets every character as it is."""
    return printable(text) if stream.isatty() else text


class LibraryLog(logging.Handler):
    """Prints what the library logs on stderr: what it waits for, as an answer of the hub."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line; `sys.stderr` is looked up each time, since a full screen replaces it."""
        tell(record.getMessage())


def tell(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def wants_colour(choice: str, stream: TextIO) -> bool:
    """Decide on ANSI colours as NO_COLOR (no-color.org) asks: an explicit choice wins over it."""
    if choice != "auto":
        return choice == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def prefill_progress(verbose: bool) -> Callable[[int, int], None] | None:
    """Return a callback that shows the prefill of a long prompt on a terminal."""
    if not verbose or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\r\x1b[K" if done >= total else ""
        print(
            f"\rreading the prompt: {done}/{total} tokens{end}", end="", file=sys.stderr, flush=True
        )

    return show


def ask(branch: Branch) -> int:
    """Show the ways to go on and read the number of one; an empty line or no stdin is the best."""
    tell("\nthe model could go on in several ways:")
    for number, rollout in enumerate(branch.rollouts):
        mark = "*" if number == branch.winner else " "
        text = shown(rollout.text, sys.stderr).replace("\n", "⏎")
        tell(
            f"{mark}{number + 1:2}  {text}\n     score {rollout.score:.2f}"
            f" (log p {rollout.mean_logprob:.2f}, entropy {rollout.mean_entropy:.2f} bits, means)"
        )
    while True:
        question = f"which one? 1 to {len(branch.rollouts)}, Enter for {branch.winner + 1}: "
        print(question, end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip() if sys.stdin else ""
        if not answer:
            return branch.winner
        if answer.isdecimal() and 1 <= int(answer) <= len(branch.rollouts):
            return int(answer) - 1


def shares(summary: Summary, colour: bool) -> str:
    """Return the share of each strategy, with its glyph."""
    labels = []
    for strategy, look in LOOKS.items():
        if number := summary.strategies[strategy]:
            label = f"{look.glyph} {strategy} {number / summary.completion_tokens:.0%}"
            labels.append(paint(label, strategy) if colour else label)
    return "  ".join(labels) or "no tokens"


def print_statistics(summary: Summary, seed: int, colour: bool) -> None:
    """Print all about a generation to stderr."""
    done = summary.interventions
    lines = [
        "─" * 40,
        shares(summary, colour),
        *([done] if done else []),
        f"entropy {summary.mean_entropy:.2f} bits, varentropy {summary.mean_varentropy:.2f} bits²"
        " (means)",
        f"{summary.prompt_tokens} prompt tokens, first token after"
        f" {summary.time_to_first_token:.1f} s; {summary.completion_tokens} tokens at"
        f" {summary.tokens_per_second:.1f} tokens/s",
        f"finished: {summary.finish_reason}; seed {seed}",
    ]
    tell("\n".join(lines))
