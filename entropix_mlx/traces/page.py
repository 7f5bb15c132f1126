"""A trace as one HTML file, which needs no server, and what it shares with the server's page.

The file holds the scripts and styles of the server's page (``server/web``) and the recorded answer
as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from .. import palette
from ..palette import SWATCHES
from ..profiles.profile import Profile
from ..profiles.sampler_specs import SAMPLERS
from ..profiles.tree import TREE_SAMPLER, table
from ..records import printable
from ..step import Step, Strategy
from ..summary import Summary
from .explain import ORIGINS, explain, lead
from .scales import fitting_scales
from .trace import Trace

Json = dict[str, Any]

WEB = resources.files("entropix_mlx").joinpath("server", "web")
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:"
)
_ESCAPED = str.maketrans({"%": "%25", "#": "%23", "\n": "%0A"})
"""Characters that a ``data:`` URL cannot hold."""
_DEEDS = {
    Strategy.THINK_SAMPLE: ("uncertain", "samples, since no thought may be inserted here"),
    Strategy.SAMPLE: ("sampled", "samples without looking at H and V"),
}
"""A name and an action for the strategies that no state of the model stands for."""


def render(trace: Trace) -> str:
    """Return a trace as one HTML file."""
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<style>{_text('style.css')}</style>"
        f'<script type="application/json" id="recorded">{_json(recorded(trace))}</script>'
        f'<script type="importmap">{_json({"imports": _modules()})}</script>'
        '<script type="module">import "app";</script>'
    )
    page = re.sub(r'<link rel="stylesheet".*?>\n|<script type="module".*?</script>', "", index())
    return page.replace("</head>", f"{head}\n</head>")


def index() -> str:
    """Return the server's page, with the words that it shares with the terminal UI."""
    return _text("index.html").replace("$vocabulary", _json(vocabulary()))


def _text(name: str) -> str:
    return WEB.joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """Return JSON for a script element: no text in it can close the element."""
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return compact.replace("<", "\\u003c")


def _modules() -> dict[str, str]:
    """Return the scripts as ``data:`` URLs, by the names that they import each other by."""
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
    asked = [message for message in header.messages if message["role"] == "user"]
    question = asked[-1] if asked else None
    versions = ", ".join(f"{name} {number}" for name, number in header.versions.items())
    facts = [
        *((one["role"], one["content"]) for one in header.messages if one is not question),
        ("sampler", f"{header.sampler}, profile {header.profile.name}"),
        ("speed", f"{summary.tokens_per_second:.1f} tokens a second"),
        ("prompt", f"{header.prompt_tokens} tokens"),
        ("versions", versions),
    ]
    shown: Json = _printable(
        {
            "model": header.model,
            "facts": facts,
            "question": question["content"] if question else "",
            "map": regions(header.profile, header.sampler),
            "steps": [_without_defaults(step.to_dict()) for step in trace.steps],
            "totals": {
                "finish_reason": trace.finish_reason,
                "stopped": summary.stopped,
                "seed": header.seed,
            },
            "why": [explained(profile, step) for step in trace.steps],
            "attention": {index: one.tokens for index, one in trace.attention.items()},
        }
    )
    return shown


def _without_defaults(record: Json) -> Json:
    return {name: value for name, value in record.items() if value not in (None, [], ())}


def _printable(value: Any) -> Any:
    """Return JSON with visible symbols for control characters, and no infinities."""
    if isinstance(value, str):
        return printable(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _printable(item) for name, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list | tuple) else value


def vocabulary() -> Json:
    """Return the words that the page shares with the terminal UI."""
    return {
        "strategies": {name: _strategy(name) for name in Strategy},
        "questions": palette.QUESTIONS,
        "samplers": {
            name: {"help": spec.help, "takes": list(spec.takes)} for name, spec in SAMPLERS.items()
        },
    }


def _strategy(strategy: Strategy) -> Json:
    state, deed = palette.MEANINGS.get(strategy) or _DEEDS[strategy]
    name = palette.SHORT_NAMES.get(strategy, state)
    return {"glyph": SWATCHES[strategy].glyph, "name": name, "deed": deed}


def regions(profile: Profile, sampler: str) -> Json:
    """Return the strategies by precedence, with their bounds, and the scales of the gauges."""
    rows = table(profile) if sampler == TREE_SAMPLER else []
    reachable = [row for row in rows if all(low < math.inf for low, _ in row.bounds.values())]
    return {
        "tree": [{"strategy": row.strategy, "bounds": _printable(row.bounds)} for row in reachable],
        "scales": {name: scale._asdict() for name, scale in fitting_scales(profile).items()},
    }


def explained(profile: Profile | None, step: Step) -> Json:
    """Return why a step was decided as it was; without a profile, there were no thresholds."""
    why = explain(profile, step)
    return {
        "origin": ORIGINS.get(step.origin, ""),
        "action": why.action,
        "cases": [
            {
                "strategy": case.strategy,
                "decided": case is why.reason,
                "conditions": [{"met": one.met, "text": one.verdict} for one in case.conditions],
            }
            for case in why.cases
        ],
        "branches": [lead(one) for one in step.fork.branches] if step.fork else [],
    }
