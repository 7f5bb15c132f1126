"""Answers for people: tokens in the colours of their strategies, and the totals below them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import fmean

from ...palette import SWATCHES, paint, paint_step
from ...profiles.confidence import ADVICE, Verdict
from ...step import Step
from ...summary import Summary
from . import output
from .options import Form


def show_steps(steps: Iterable[Step], form: Form, summary: Summary) -> int:
    """Print steps as they come, and add them to the summary; return the exit code.

    With `form.json`, only the totals are printed, which is left to the caller.
    """
    colour = output.use_colour(form.color, sys.stdout)
    try:
        for step in steps:
            summary.add(step)
            if form.jsonl:
                output.write_json(step.to_dict())
            elif not form.json:
                write_step(step, colour)
    except KeyboardInterrupt:
        summary.finish_reason = "interrupted"
        return output.INTERRUPTED
    return 0


def write_step(step: Step, colour: bool) -> None:
    step = replace(step, text=output.shown(step.text))
    output.write(paint_step(step) if colour else step.text)


def print_statistics(summary: Summary, color: str, *lines: str) -> None:
    """Print the strategies and mean uncertainty of an answer to stderr, and more lines below."""
    output.info("─" * 40)
    output.info(strategies(summary, output.use_colour(color, sys.stderr)))
    if summary.interventions:
        output.info(summary.interventions)
    means = f"entropy {summary.mean_entropy:.2f} bits, varentropy {summary.mean_varentropy:.2f}"
    output.info("\n".join([f"{means} bits² (means)", *lines]))


def strategies(summary: Summary, colour: bool) -> str:
    labels = []
    for strategy, swatch in SWATCHES.items():
        if number := summary.strategies[strategy]:
            label = f"{swatch.glyph} {strategy} {number / summary.completion_tokens:.0%}"
            labels.append(paint(label, strategy) if colour else label)
    return "  ".join(labels) or "no tokens"


def constrained(summary: Summary) -> Iterator[str]:
    """Yield what a constraint did, and how sure each field of a JSON answer is."""
    if strains := summary.strains:
        yield f"strain {fmean(strains):.2f} bits (mean), {max(strains):.2f} (largest)"
    for field in summary.fields:
        value = output.shortened(json.dumps(field.value, ensure_ascii=False))
        others = ", ".join(f"{o.text} {o.probability:.0%}" for o in field.alternatives[:3])
        listed = f"  ({others})" if others else ""
        yield f"{field.probability:7.1%}  {field.pointer} {value}{listed}"


def report_if_unsure(verdict: Verdict | None) -> None:
    if verdict is not None and verdict.unsure:
        output.info(f"{verdict.reason}; {ADVICE}")
