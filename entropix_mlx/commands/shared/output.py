"""Writing to a terminal or a pipe: results to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TextIO

from ...errors import OutputError
from ...palette import (
    LOOKS,
    paint,
    paint_step,
    printable,
    to_json,
)
from ...profiles.confidence import Verdict
from ...step import Fork, Step
from ...summary import Summary
from ...traces.explain import fate, standing
from . import streams

LONGEST_MESSAGE = 1000
"""Characters of an error message; one that quotes a file or an argument could be endless."""


def write(text: str) -> None:
    """Print to stdout at once.

    Raises:
        OutputError: stdout is closed, or the disk is full.
    """
    with streams.written():
        sys.stdout.write(text)


def write_text(text: str) -> None:
    """Print what a model wrote to stdout at once, as `shown` returns it."""
    write(shown(text, sys.stdout))


def write_step(step: Step, colour: bool) -> None:
    """Print a step's text to stdout at once, as `shown` returns it."""
    step = replace(step, text=shown(step.text, sys.stdout))
    write(paint_step(step) if colour else step.text)


def write_json(record: Any, indent: int | None = None) -> None:
    """Print a JSON record and a line break to stdout at once; it can always be parsed again."""
    text = to_json(record, indent)
    if not (sys.stdout.encoding or "").lower().startswith("utf"):
        text = json.dumps(record, indent=indent)  # in ASCII
    write(text + "\n")


def shown(text: str, stream: TextIO) -> str:
    """Return what a model wrote, made `printable` if the stream is a terminal, unchanged if not."""
    return printable(text) if stream.isatty() else text


WHAT_TO_DO = "ask more precisely, try another seed, let it think (think.max_insertions), or abstain"
"""With an answer that is unsure."""


class LibraryLog(logging.Handler):
    """Prints what the library logs on stderr: what it waits for, as an answer of the hub."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line; `sys.stderr` is looked up each time, since a full screen replaces it."""
        tell(record.getMessage())


def tell(text: str, end: str = "\n") -> None:
    """Print to stderr at once; if stderr takes nothing, nobody is told."""
    with contextlib.suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


def tell_error(message: str) -> None:
    """Print what went wrong to stderr, `shortened`: it may quote what was given."""
    tell(f"entropix: {shortened(message)}")


def shortened(message: str) -> str:
    """Return a message that fits on a screen, without what a terminal would obey."""
    if len(message) > LONGEST_MESSAGE:
        half = LONGEST_MESSAGE // 2
        message = f"{message[:half]} … {message[-half:]}"
    return printable(message)


def check_screen(instead: str) -> None:
    """Check that there is a terminal for the terminal UI, which would wait for keys without one.

    Args:
        instead: what to do if there is none, for the message.

    Raises:
        OutputError: stdin or stdout is no terminal.
    """
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        raise OutputError(f"the terminal UI needs a terminal: {instead}")


def wants_colour(choice: str, stream: TextIO) -> bool:
    """Tell whether to print ANSI colours.

    An explicit choice wins over the variable NO_COLOR (no-color.org), that over what the stream is.
    """
    if choice != "auto":
        return choice == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def prefill_progress(verbose: bool, what: str = "the prompt") -> Callable[[int, int], None] | None:
    """Return a callback that shows the progress of prefill; None if stderr is no terminal."""
    if not verbose or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\r\x1b[K" if done >= total else ""
        tell(f"\rreading {what}: {done}/{total} tokens{end}", end="")

    return show


def ask(fork: Fork) -> int:
    """Show the rollouts of a fork and return the index of the one that the user chooses.

    An empty line, or no stdin, chooses the one that scored best.
    """
    tell("\nthe model could go on in several ways:")
    for number, branch in enumerate(fork.branches):
        mark = "*" if number == fork.winner else " "
        text = shown(branch.text, sys.stderr).replace("\n", "⏎")
        numbers = [
            standing(branch) if number else "the others are compared with this one",
            f"log p {branch.mean_logprob:.2f}, entropy {branch.mean_entropy:.2f} bits (means)",
            fate(branch),
        ]
        tell(f"{mark}{number + 1:2}  {text}\n     {'; '.join(filter(None, numbers))}")
    while True:
        question = f"which one? 1 to {len(fork.branches)}, Enter for {fork.winner + 1}: "
        tell(question, end="")
        answer = sys.stdin.readline().strip() if sys.stdin else ""
        if not answer:
            return fork.winner
        numbers = [str(number) for number in range(1, len(fork.branches) + 1)]
        if answer in numbers:
            return numbers.index(answer)


def shares(summary: Summary, colour: bool) -> str:
    """Return the share of each strategy, with its glyph."""
    labels = []
    for strategy, look in LOOKS.items():
        if number := summary.strategies[strategy]:
            label = f"{look.glyph} {strategy} {number / summary.completion_tokens:.0%}"
            labels.append(paint(label, strategy) if colour else label)
    return "  ".join(labels) or "no tokens"


def _saved(summary: Summary) -> str:
    """Return what guesses from the text saved; empty if they saved nothing."""
    if not summary.accepted:
        return ""
    accepted = f"{summary.accepted}/{summary.proposed} proposed tokens accepted"
    return f", {summary.tokens_per_pass:.2f} tokens/forward pass ({accepted})"


def print_statistics(summary: Summary, seed: int, colour: bool) -> None:
    """Print the totals of a generation to stderr."""
    done = summary.interventions
    lines = [
        "─" * 40,
        shares(summary, colour),
        *([done] if done else []),
        f"entropy {summary.mean_entropy:.2f} bits, varentropy {summary.mean_varentropy:.2f} bits²"
        " (means)",
        f"{summary.prompt_tokens} prompt tokens, first token after"
        f" {summary.time_to_first_token:.1f} s; {summary.completion_tokens} tokens at"
        f" {summary.tokens_per_second:.1f} tokens/s" + _saved(summary),
        f"finished: {summary.finish_reason}; seed {seed}",
    ]
    tell("\n".join(lines))


def tell_if_unsure(verdict: Verdict | None) -> None:
    """Say on stderr that an answer is unsure, where it is."""
    if verdict is not None and verdict.unsure:
        tell(f"{verdict.reason}; {WHAT_TO_DO}")
