"""A report of one or two traces: a single HTML page that needs no network and no model.

The page can be read and printed without a script. The metrics of each token are in it as JSON, too,
for the panel that opens at the pointer. `report.html` holds the style sheet and the script.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import PurePosixPath
from string import Template
from typing import Any

from ..errors import TraceError
from ..palette import SWATCHES, printable
from ..profiles.profile import Profile
from ..profiles.tree import TREE_SAMPLER
from ..step import (
    NOT_OF_THE_MODEL,
    Branch,
    Fork,
    Metrics,
    Origin,
    Source,
    Step,
    Strategy,
    first_divergence,
)
from ..summary import Summary
from .charts import Frame, curve, frame_of, interventions, plane
from .explain import explain, fate, lead
from .trace import Trace

_DIGITS = 4  # significant digits of each number in the page

_UNITS = {
    "logprob": "nats",
    "entropy": "bits",
    "varentropy": "bits²",
    "attention_entropy": "bits",
    "attention_varentropy": "bits²",
    "strain": "bits",
    "time": "s",
}
_PARAMETERS = ("temperature", "top_p", "top_k", "min_p")
_FIELDS = (
    *("logprob", *Metrics._fields, "position_score"),
    *("strategy", "origin", *_PARAMETERS, "token", "time"),
)
"""The fields of a step that the panel shows; under a constraint, the strain follows."""


def render(traces: Sequence[Trace]) -> str:
    """Return an HTML page about one trace, or about two side by side.

    Raises:
        TraceError: neither one nor two traces.
    """
    if len(traces) not in (1, 2):
        raise TraceError(f"a report shows one trace, or two side by side, not {len(traces)}")
    frame = frame_of([step for trace in traces for step in trace.steps])
    split = first_divergence(*(trace.steps for trace in traces)) if len(traces) == 2 else None
    sections = "".join(
        _section(trace, number, frame, split) for number, trace in enumerate(traces, 1)
    )
    comparison = _comparison(traces, split) if len(traces) == 2 else ""
    page = resources.files(__package__) / "report.html"
    return Template(page.read_text(encoding="utf-8")).substitute(
        title=_text(" and ".join(trace.header.model for trace in traces) + " – entropix report"),
        colours=_colours(),
        body=f'<h1>What happened</h1>{comparison}{_key()}<div class="side">{sections}</div>',
        data=_json([_data(trace, frame) for trace in traces]),
    )


def _text(text: str) -> str:
    """Return a text of a trace, escaped for HTML, with visible symbols for control characters."""
    return escape(printable(text).encode("utf-8", "replace").decode("utf-8"))


def _json(value: Any) -> str:
    """Return JSON for a script element: no text in it can close the element."""
    compact = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return compact.replace("<", "\\u003c")


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _data(trace: Trace, frame: Frame) -> dict[str, Any]:
    thresholds = _thresholds(trace)
    constrained = any(step.strain is not None for step in trace.steps)
    names = (*_FIELDS, "strain") if constrained else _FIELDS
    steps = [
        {
            "why": str(explain(thresholds, step)),
            "values": [_value(getattr(step, name)) for name in names],
            "alternatives": [[a.text, _number(a.logprob)] for a in step.top_logprobs],
            "place": [round(frame.x(step.entropy), 1), round(frame.y(step.varentropy), 1)],
        }
        for step in trace.steps
    ]
    return {"fields": [(name, _UNITS.get(name, "")) for name in names], "steps": steps}


def _thresholds(trace: Trace) -> Profile | None:
    """Return the profile that decided; None if the sampler has no thresholds."""
    return trace.header.profile if trace.header.sampler == TREE_SAMPLER else None


def _value(value: Any) -> Any:
    return _number(value) if isinstance(value, float) else value


def _colours() -> str:
    return " ".join(
        ".{} {{ --colour: rgb({}, {}, {}); }}".format(strategy, *swatch.rgb)
        for strategy, swatch in SWATCHES.items()
    )


def _glyph(strategy: Strategy) -> str:
    return f'<span class="glyph {strategy}">{SWATCHES[strategy].glyph}</span>'


def _key() -> str:
    items = "".join(
        f'<li>{_glyph(strategy)} <span class="token {strategy}">{strategy}</span></li>'
        for strategy in SWATCHES
    )
    return (
        f'<ul class="key">{items}<li><span class="inserted">inserted</span></li></ul>'
        '<p class="faint screen">Point at a token, or focus the text and press ← and →, for its'
        " metrics and why it was chosen; Esc, or a tap on the panel, closes it.</p>"
    )


def _comparison(traces: Sequence[Trace], split: int | None) -> str:
    if split is None:
        return "<p>Both answers are the same, token by token.</p>"
    shared = f"{split} token{'' if split == 1 else 's'}"
    following = " and ".join(_next_token(trace, split) for trace in traces)
    return f"<p>The answers share {shared} at their beginning, then continue with {following}.</p>"


def _next_token(trace: Trace, index: int) -> str:
    if index >= len(trace.steps):
        return "nothing"
    step = trace.steps[index]
    return (
        f"<q>{_text(step.text)}</q> ({_glyph(step.strategy)} {step.strategy},"
        f" H {step.entropy:.2f} bits, V {step.varentropy:.2f} bits²)"
    )


def _section(trace: Trace, number: int, frame: Frame, split: int | None) -> str:
    summary = Summary.of(trace.steps, trace.header.prompt_tokens)
    marks = interventions(trace.steps)
    thresholds = _thresholds(trace)
    return "".join(
        (
            f'<section class="trace"><h2>{_text(trace.header.model)}</h2>',
            _facts(trace, summary),
            "<h3>The answer</h3>",
            _answer(trace, number, marks, split),
            _answer_fields(summary),
            "<h3>Entropy H, bits</h3>",
            _chart([step.entropy for step in trace.steps], frame.entropy, marks),
            "<h3>Varentropy V, bits²</h3>",
            _chart([step.varentropy for step in trace.steps], frame.varentropy, marks),
            "<h3>Entropy and varentropy</h3>",
            plane(trace.steps, frame, thresholds),
            '<p class="faint">Square-root scales.',
            " Areas: the thresholds of the profile, without its other conditions. All tokens of an"
            " inserted text are marked as think, wherever they stand.</p>"
            if thresholds
            else "</p>",
            "<h3>Strategies</h3>",
            _rates(summary),
            _forks(trace.steps, number),
            "</section>",
        )
    )


def _facts(trace: Trace, summary: Summary) -> str:
    header = trace.header
    read = any(step.origin is Origin.READ for step in trace.steps)
    messages = [(message["role"], message["content"]) for message in header.messages]
    facts = {
        "sampler": f"{header.sampler}, profile {header.profile.name}, seed {header.seed}",
        "tokens": f"{header.prompt_tokens} of the prompt, {summary.completion_tokens}"
        f" {'read' if read else 'generated'}"
        f" at {summary.tokens_per_second:.1f} a second",
        "finished": _ending(trace),
        "means": f"H {summary.mean_entropy:.2f} bits, V {summary.mean_varentropy:.2f} bits²",
        "interventions": summary.interventions or "none",
        "versions": ", ".join(f"{name} {number}" for name, number in header.versions.items()),
    }
    said = "".join(f'<dt>{_text(r)}</dt><dd class="said">{_text(c)}</dd>' for r, c in messages)
    rest = "".join(f"<dt>{name}</dt><dd>{_text(fact)}</dd>" for name, fact in facts.items())
    return f"<dl>{said}{rest}</dl>"


def _ending(trace: Trace) -> str:
    if trace.finish_reason:
        return trace.finish_reason
    return "no: the recording was cut off" if trace.totals is None else "no: stopped"


def _answer_fields(summary: Summary) -> str:
    """Return a table of the fields of a JSON answer; empty without any."""
    rows = [
        f"<tr><td>{_text(field.pointer)}</td><td>{_text(json.dumps(field.value))}</td>"
        f'<td class="number">{field.probability:.1%}</td>'
        f'<td class="number">{field.strain:.1f}</td>'
        f"<td>{_text(', '.join(f'{o.text} {o.probability:.0%}' for o in field.alternatives))}</td>"
        "</tr>"
        for field in summary.fields
    ]
    if not rows:
        return ""
    titles = "<th>field</th><th>value</th><th>probability</th><th>strain, bits</th>"
    head = f"<tr>{titles}<th>could have gone on with</th></tr>"
    return f'<h3>Fields</h3><div class="wide"><table>{head}{"".join(rows)}</table></div>'


def _answer(trace: Trace, number: int, marks: dict[int, Strategy], split: int | None) -> str:
    steps, folder = trace.steps, trace.header.notes
    pieces = []
    for step in steps:
        if step.index == split:
            pieces.append(
                f'<span class="split" id="split-{number}">▶ they differ from here on: </span>'
            )
        if step.fork is not None:
            pieces.append(
                f'<a class="mark branch" href="#fork-{number}-{step.index}"'
                f' title="what was compared here">▲</a>'
            )
        elif step.source is not None:
            pieces.append(_quoted(step.source, folder))
        elif step.index in marks:
            strategy = marks[step.index]
            pieces.append(f'<span class="mark {strategy}">{SWATCHES[strategy].glyph}</span>')
        inserted = " inserted" if step.origin in NOT_OF_THE_MODEL else ""
        text = _text(step.text).replace("\n", "↵\n")
        pieces.append(f'<span class="token {step.strategy}{inserted}">{text}</span>')
    return f'<div class="text" tabindex="0">{"".join(pieces)}</div>'


def _quoted(source: Source, folder: str) -> str:
    mark = f"{SWATCHES[Strategy.THINK].glyph} {_text(source.label)}"
    link = file_link(folder, source.name)
    target = "" if link is None else f' href="{escape(link)}"'
    return f'<a class="mark think"{target} title="retrieved from the notes">{mark}</a> '


def file_link(folder: str, name: str) -> str | None:
    """Return a ``file:`` link to a file of a folder; None where it would lead elsewhere.

    A trace may come from anybody: the link leads below the folder that it names, or nowhere. The
    folder is an absolute path, the name a path relative to it, with slashes.
    """
    base, path = PurePosixPath(folder), PurePosixPath(name)
    inside = name and not path.is_absolute() and not {"..", "."} & set(name.split("/"))
    if not inside or base.root != "/" or ".." in base.parts:  # "//": another machine's
        return None
    return (base / path).as_uri()


def _chart(values: Sequence[float], top: float, marks: dict[int, Strategy]) -> str:
    flags = "".join(
        f'<span class="flag {strategy}" style="left:{100 * (index + 0.5) / len(values):.2f}%">'
        f'<span class="glyph {strategy}">{SWATCHES[strategy].glyph}</span></span>'
        for index, strategy in marks.items()
    )
    last = max(0, len(values) - 1)
    return (
        f'<div class="wide"><div class="chart" style="min-width:{len(values) // 2}px">{flags}'
        f'{curve(values, top, marks)}<div class="ends faint"><span>token 0</span>'
        f"<span>upper edge: {top:.1f}</span><span>{last}</span></div></div></div>"
    )


def _rates(summary: Summary) -> str:
    rows = []
    for strategy in SWATCHES:
        if count := summary.strategies[strategy]:
            share = count / summary.completion_tokens
            rows.append(
                f"<tr><td>{_glyph(strategy)} {strategy}</td>"
                f'<td class="number">{count}</td><td class="number">{share:.1%}</td>'
                f'<td style="width:45%"><span class="bar {strategy}"'
                f' style="width:{share:.1%}"></span></td></tr>'
            )
    return f"<table>{''.join(rows)}</table>" if rows else "<p>No token was generated.</p>"


def _forks(steps: Sequence[Step], number: int) -> str:
    forks = "".join(
        f'<p id="fork-{number}-{step.index}">▲ at token {step.index}{_fork(step.fork)}'
        for step in steps
        if step.fork is not None
    )
    return f"<h3>Forks</h3>{forks}" if forks else ""


def _fork(fork: Fork) -> str:
    rows = "".join(
        _branch(branch, place == fork.winner) for place, branch in enumerate(fork.branches)
    )
    return (
        f', chosen by {fork.chosen_by}:</p><div class="wide"><table>'
        '<tr><th></th><th class="number">lead, nats a token</th>'
        '<th class="number">mean log p</th><th class="number">mean H</th>'
        '<th class="number">copied</th><th>pruned</th><th>text</th></tr>'
        f"{rows}</table></div>"
    )


def _branch(branch: Branch, won: bool) -> str:
    kind, mark = ("winner", "✔") if won else ("loser", "")
    return (
        f'<tr class="{kind}"><td>{mark}</td>'
        f'<td class="number">{lead(branch)}</td>'
        f'<td class="number">{branch.mean_logprob:.2f}</td>'
        f'<td class="number">{branch.mean_entropy:.2f}</td>'
        f'<td class="number">{branch.copied or ""}</td>'
        f'<td>{fate(branch)}</td><td class="branch-text">{_text(branch.text)}</td></tr>'
    )
