"""A report of one or two traces: a single HTML page that needs no network and no model.

The page can be read and printed without a script. The metrics of each token are in it as JSON, too,
for the panel that opens at the pointer. `report.html` is its template, with the style sheet and the
script; Jinja escapes what a trace says.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Self

from ..errors import TraceError
from ..palette import SWATCHES, printable
from ..profiles.profile import Profile
from ..profiles.tree import TREE_SAMPLER, table
from ..step import NOT_OF_THE_MODEL, Metrics, Origin, Step, Strategy, first_divergence
from ..summary import Summary
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

_DOT = "m-3 0a3 3 0 106 0a3 3 0 10-6 0z"
_RING = _DOT + "m1.5 0a1.5 1.5 0 013 0a1.5 1.5 0 01-3 0z"
_DIAMOND = "m-4 0l4-4 4 4-4 4z"
_SHAPES = {
    Strategy.ARGMAX: _DOT,
    Strategy.THINK: _DIAMOND,
    Strategy.THINK_SAMPLE: _DIAMOND + "m2.5 0l1.5 1.5 1.5-1.5-1.5-1.5z",
    Strategy.BRANCH: "m-4 3h8l-4-7z",
    Strategy.RESAMPLE: "m-3-3h6v6h-6z",
    Strategy.ADAPTIVE: _RING,
    Strategy.SAMPLE: "m-1.5 0a1.5 1.5 0 103 0a1.5 1.5 0 10-3 0z",
}
"""The glyphs of `palette.SWATCHES` as SVG paths, around a dot's centre. A hole runs the other way
round, so that it is not filled."""
_TICKS = (0, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def render(traces: Sequence[Trace]) -> str:
    """Return an HTML page about one trace, or about two side by side.

    Raises:
        TraceError: neither one nor two traces.
    """
    if len(traces) not in (1, 2):
        raise TraceError(f"a report shows one trace, or two side by side, not {len(traces)}")
    from jinja2 import Environment, StrictUndefined  # slow to import

    frame = Frame.of([step for trace in traces for step in trace.steps])
    environment = Environment(
        autoescape=True,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    page = (resources.files(__package__) / "report.html").read_text(encoding="utf-8")
    return environment.from_string(page).render(
        sections=[Section.of(trace, frame) for trace in traces],
        frame=frame,
        split=first_divergence(*(trace.steps for trace in traces)) if len(traces) == 2 else None,
        data=_json([_data(trace, frame) for trace in traces]),
        swatches=SWATCHES,
        not_of_the_model=NOT_OF_THE_MODEL,
        file_link=file_link,
        lead=lead,
        fate=fate,
        to_json=json.dumps,
    )


def _visible(value: Any) -> Any:
    """Return a text of a trace with visible symbols for control characters, as UTF-8 can hold
    it."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return printable(value).encode("utf-8", "replace").decode("utf-8")


class Frame(NamedTuple):
    """The place of the plane, and the largest H and V that it shows, on square-root scales.

    On linear ones the corner where the model is sure, with H and V below 1, would be tiny.
    """

    entropy: float  # bits at the right edge
    varentropy: float  # bits² at the upper edge
    left: float = 40
    top: float = 24
    width: float = 450
    height: float = 300

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Self:
        return cls(
            entropy=max([1.0, *(step.entropy for step in steps)]),
            varentropy=max([1.0, *(step.varentropy for step in steps)]),
        )

    def x(self, entropy: float) -> float:
        return self.left + self.width * _root_share(entropy, self.entropy)

    def y(self, varentropy: float) -> float:
        return self.top + self.height * (1 - _root_share(varentropy, self.varentropy))

    def ticks(self, top: float) -> list[float]:
        return [tick for tick in _TICKS if tick <= top]


def _root_share(value: float, whole: float) -> float:
    return math.sqrt(min(max(value / whole, 0.0), 1.0))


class Region(NamedTuple):
    """Where a strategy decides in the plane, but for its other conditions."""

    strategy: Strategy
    left: float
    top: float
    width: float
    height: float


class Section(NamedTuple):
    """What the page shows of a trace beside its steps."""

    trace: Trace
    summary: Summary
    facts: dict[str, str]
    marks: dict[int, Strategy]
    """The strategies as which interventions are marked, by the index of their first token."""
    regions: list[Region]
    """None where the sampler has no thresholds."""
    dots: dict[Strategy, str]
    """The path of all dots of a strategy: thousands of elements would be slow."""

    @classmethod
    def of(cls, trace: Trace, frame: Frame) -> Self:
        summary = Summary.of(trace.steps, trace.header.prompt_tokens)
        dots: dict[Strategy, str] = defaultdict(str)
        for step in trace.steps:
            place = f"M{frame.x(step.entropy):.1f} {frame.y(step.varentropy):.1f}"
            dots[step.strategy] += place + _SHAPES[step.strategy]
        regions = list(_regions(frame, _thresholds(trace)))
        return cls(
            trace, summary, _facts(trace, summary), interventions(trace.steps), regions, dots
        )


def _regions(frame: Frame, profile: Profile | None) -> Iterator[Region]:
    """Yield the rows of the decision tree, the last first: where two overlap, the first decides."""
    for row in reversed(table(profile) if profile else []):
        if not row.bounds:  # it holds wherever no other does
            continue
        left, right = (frame.x(bound) for bound in row.bounds["entropy"])
        bottom, top = (frame.y(bound) for bound in row.bounds["varentropy"])
        if left < right and top < bottom:
            yield Region(row.strategy, left, top, right - left, bottom - top)


def _facts(trace: Trace, summary: Summary) -> dict[str, str]:
    header = trace.header
    read = any(step.origin is Origin.READ for step in trace.steps)
    return {
        "sampler": f"{header.sampler}, profile {header.profile.name}, seed {header.seed}",
        "tokens": f"{header.prompt_tokens} of the prompt, {summary.completion_tokens}"
        f" {'read' if read else 'generated'}"
        f" at {summary.tokens_per_second:.1f} a second",
        "finished": _ending(trace),
        "means": f"H {summary.mean_entropy:.2f} bits, V {summary.mean_varentropy:.2f} bits²",
        "interventions": summary.interventions or "none",
        "versions": ", ".join(f"{name} {number}" for name, number in header.versions.items()),
    }


def _ending(trace: Trace) -> str:
    if trace.finish_reason:
        return trace.finish_reason
    return "no: the recording was cut off" if trace.totals is None else "no: stopped"


def interventions(steps: Sequence[Step]) -> dict[int, Strategy]:
    """Return the strategies as which interventions are marked; a user's choice is like a fork."""
    marks = {}
    for step in steps:
        if step.rolled_back and step.origin in NOT_OF_THE_MODEL:
            marks[step.index] = Strategy.THINK
        elif step.fork is not None or (step.rolled_back and step.origin is Origin.CHOSEN):
            marks[step.index] = Strategy.BRANCH
    return marks


def _thresholds(trace: Trace) -> Profile | None:
    """Return the profile that decided; None if the sampler has no thresholds."""
    return trace.header.profile if trace.header.sampler == TREE_SAMPLER else None


def _data(trace: Trace, frame: Frame) -> dict[str, Any]:
    thresholds = _thresholds(trace)
    constrained = any(step.strain is not None for step in trace.steps)
    names = (*_FIELDS, "strain") if constrained else _FIELDS
    steps = [
        {
            "why": str(explain(thresholds, step)),
            "values": [_value(getattr(step, name)) for name in names],
            "alternatives": [[a.text, _value(a.logprob)] for a in step.top_logprobs],
            "attended": _attended(trace, step),
            "place": [round(frame.x(step.entropy), 1), round(frame.y(step.varentropy), 1)],
        }
        for step in trace.steps
    ]
    return {"fields": [(name, _UNITS.get(name, "")) for name in names], "steps": steps}


def _attended(trace: Trace, step: Step) -> dict[str, Any] | None:
    found = trace.attention.get(step.index)
    return {"prompt": _value(found.prompt), "tokens": found.tokens} if found else None


def _value(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _json(value: Any) -> str:
    """Return JSON for a script element: no text in it can close the element."""
    compact = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return compact.replace("<", "\\u003c")


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
