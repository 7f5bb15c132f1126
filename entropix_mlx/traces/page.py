"""The page of an answer in a browser: its words and colours, and a trace as one HTML file.

The file holds the scripts and styles of the server's page (``server/web``) and the recorded answer
as JSON. It opens without a server and asks no address for anything.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from .. import palette
from ..palette import SWATCHES, Rgb, blend, readable
from ..profiles.profile import Profile
from ..profiles.sampler_specs import specs
from ..profiles.tree import TREE_SAMPLER, table
from ..step import Metrics, Step, Strategy
from ..summary import Summary
from .explain import ORIGINS, Case, explain, lead, words
from .scales import fitting_scales
from .trace import Trace

Json = dict[str, Any]

PAPERS: dict[str, Rgb] = {"light": (255, 255, 255), "dark": (22, 24, 27)}
"""The backgrounds of the page."""
TINT = 0.22
"""The share of a strategy's colour in the background of its tokens."""
WEB = resources.files("entropix_mlx").joinpath("server", "web")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:"
)
_ESCAPED = str.maketrans({"%": "%25", "#": "%23", "\n": "%0A"})
"""What may not stand in the address of a script as it is."""


def render(trace: Trace) -> str:
    """Return a trace as one HTML file."""
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<style>{colours()}</style><style>{_text('style.css')}</style>"
        f'<script type="application/json" id="recorded">{_json(recorded(trace))}</script>'
        f'<script type="importmap">{_json({"imports": _modules()})}</script>'
        '<script type="module">import "app";</script>'
    )
    page = re.sub(r'<link rel="stylesheet".*?>\n|<script type="module".*?</script>', "", index())
    return page.replace("</head>", f"{head}\n</head>")


def index() -> str:
    """Return the page with the words that it shares with the terminal UI."""
    return _text("index.html").replace("$vocabulary", _json(vocabulary()))


def _text(name: str) -> str:
    return WEB.joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """Return JSON for a script element: no text in it can close the element."""
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return compact.replace("<", "\\u003c")


def _modules() -> dict[str, str]:
    """Return the scripts by their names, each as an address that holds it."""
    names = [file.name for file in WEB.iterdir() if file.name.endswith(".js")]
    texts = {name: re.sub(r'from "\./(\w+)\.js"', r'from "\1"', _text(name)) for name in names}
    return {
        name.removesuffix(".js"): f"data:text/javascript;charset=utf-8,{text.translate(_ESCAPED)}"
        for name, text in texts.items()
    }


def recorded(trace: Trace) -> Json:
    """Return what the page shows of a trace."""
    header, summary = trace.header, Summary.of(trace.steps, trace.header.prompt_tokens)
    profile = header.profile if header.sampler == TREE_SAMPLER else None
    ended = {"finish_reason": trace.finish_reason, "stopped": summary.stopped}
    counts = {"insertions": summary.insertions, "forks": summary.forks, "seed": header.seed}
    totals = {**ended, **counts, "fields": [field.to_dict() for field in summary.fields]}
    facts = {
        "sampler": f"{header.sampler}, profile {header.profile.name}, seed {header.seed}",
        "speed": f"{summary.tokens_per_second:.1f} tokens a second",
        "prompt": f"{header.prompt_tokens} tokens",
        "versions": ", ".join(f"{name} {number}" for name, number in header.versions.items()),
    }
    messages = [{"role": one["role"], "content": one["content"]} for one in header.messages]
    shown: Json = _printable(
        {
            "model": header.model,
            "facts": facts,
            "messages": messages,
            "map": regions(header.profile, header.sampler),
            "steps": [_without_defaults(step.to_dict()) for step in trace.steps],
            "totals": totals,
            "why": [explained(profile, step) for step in trace.steps],
            "attention": {
                str(index): {"prompt": one.prompt, "tokens": one.tokens}
                for index, one in trace.attention.items()
            },
        }
    )
    return shown


def _without_defaults(record: Json) -> Json:
    return {name: value for name, value in record.items() if value not in (None, [], ())}


def _printable(value: Any) -> Any:
    """Return JSON with visible symbols for control characters, and no infinities."""
    if isinstance(value, str):
        return palette.printable(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _printable(item) for name, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list | tuple) else value


@functools.cache
def colours() -> str:
    """Return the strategies' colours: as they are, and readable on each background."""
    rules = []
    for theme, paper in PAPERS.items():
        found = [f"--paper: {_css(paper)};"]
        for strategy, swatch in SWATCHES.items():
            tinted = blend(paper, swatch.rgb, TINT)
            found.append(f"--{strategy}: {_css(swatch.rgb)}; --{strategy}-tint: {_css(tinted)};")
            found.append(f"--{strategy}-text: {_css(readable(swatch.rgb, tinted))};")
        rules.append(f":root[data-theme={theme}] {{ color-scheme: {theme}; {' '.join(found)} }}")
    for strategy in SWATCHES:
        names = ("colour", strategy), ("tint", f"{strategy}-tint"), ("text", f"{strategy}-text")
        rules.append(f".{strategy} {{ {' '.join(f'--{a}: var(--{b});' for a, b in names)} }}")
    return "\n".join(rules)


def _css(colour: Rgb) -> str:
    return "rgb({}, {}, {})".format(*colour)


def vocabulary() -> Json:
    """Return the words that the page shares with the terminal UI."""
    samplers = {
        name: {"help": spec.help, "takes": list(spec.takes)} for name, spec in specs().items()
    }
    return {
        "strategies": {name: _strategy(name) for name in Strategy},
        "marks": palette.ORIGIN_MARKS,
        "questions": palette.QUESTIONS,
        "introduction": palette.INTRODUCTION,
        "letters": palette.LETTERS,
        "surprises": palette.SURPRISES,
        "grades": palette.GRADES,
        "samplers": samplers,
    }


def _strategy(name: Strategy) -> Json:
    state, deed = palette.MEANINGS.get(name, ("", ""))
    short, rare = palette.SHORT_NAMES.get(name, ""), name in palette.RARE
    told = {"glyph": SWATCHES[name].glyph, "state": state, "deed": deed}
    return {**told, "short": short, "rare": rare}


def regions(profile: Profile, sampler: str) -> Json:
    """Return the strategies of H and V by precedence, with their bounds, and the scales."""
    rows = table(profile) if sampler == TREE_SAMPLER else []
    return {
        "tree": [
            {"strategy": row.strategy, "bounds": {n: _finite(*b) for n, b in row.bounds.items()}}
            for row in rows
            if not any(low == math.inf for low, _ in row.bounds.values())
        ],
        "scales": {name: scale._asdict() for name, scale in fitting_scales(profile).items()},
    }


def _finite(*bounds: float) -> list[float | None]:
    return [bound if math.isfinite(bound) else None for bound in bounds]


def explained(profile: Profile | None, step: Step) -> Json:
    """Return why a step was decided as it was; without a profile, there were no thresholds."""
    why = explain(profile, step)
    measured = {name: getattr(step, name) for name in Metrics._fields}
    return {
        "heading": why.heading + ("" if step.fork else f", {ORIGINS.get(step.origin, '')}"),
        "outcome": why.outcome,
        "near": why.near_miss,
        "words": words(profile, measured) if profile else {},
        "cases": [_case(case, decided=case is why.reason) for case in why.cases],
        "branches": [
            {"text": one.text, "tokens": one.tokens, "lead": lead(one)}
            for one in (step.fork.branches if step.fork else ())
        ],
    }


def _case(case: Case, decided: bool) -> Json:
    conditions = [
        {"met": one.met, "text": f"{one.verdict} ({one.distance:.2f})"} for one in case.conditions
    ]
    return {"strategy": case.strategy, "decided": decided, "conditions": conditions}
