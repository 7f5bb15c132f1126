"""The page at /: its files, and the words, colours and regions of the terminal UI for it."""

from __future__ import annotations

import functools
import json
import math
from importlib import resources
from typing import Any

from starlette.responses import Response

from .. import palette
from ..palette import SWATCHES, Rgb, blend, readable
from ..profiles.profile import Profile
from ..profiles.sampler_specs import specs
from ..profiles.tree import TREE_SAMPLER, table
from ..settings import Settings
from ..step import Metrics, Step, Strategy
from ..traces.explain import ORIGINS, Case, explain, fate, lead, words
from ..traces.scales import fitting_scales
from .openai.errors import RequestError

Json = dict[str, Any]

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""The page may talk to its own server and to nobody else, and no text may become markup."""
KINDS = {"js": "text/javascript", "css": "text/css"}
PAPERS: dict[str, Rgb] = {"light": (255, 255, 255), "dark": (22, 24, 27)}
"""The backgrounds of the page."""
TINT = 0.22
"""The share of a strategy's colour in the background of its tokens."""
_FOLDER = resources.files(__package__) / "web"


def index() -> Response:
    text = (_FOLDER / "index.html").read_text(encoding="utf-8")
    data = json.dumps(vocabulary()).replace("<", "\\u003c")  # which could end the element
    return Response(text.replace("$vocabulary", data), media_type="text/html", headers=HEADERS)


def asset(name: str) -> Response:
    """Return a file of the page, or the style sheet of the strategies' colours.

    Raises:
        RequestError: there is none of that name.
    """
    if name == "colours.css":
        return Response(colours(), media_type="text/css", headers=HEADERS)
    if name not in {file.name for file in _FOLDER.iterdir()}:
        raise RequestError("the page has no such file", status=404, code="unknown_url")
    kind = KINDS.get(name.rpartition(".")[2], "text/plain")
    return Response((_FOLDER / name).read_bytes(), media_type=kind, headers=HEADERS)


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
    return {
        "strategies": {name: _strategy(name) for name in Strategy},
        "marks": palette.ORIGIN_MARKS,
        "questions": palette.QUESTIONS,
        "introduction": palette.INTRODUCTION,
        "letters": palette.LETTERS,
        "surprises": palette.SURPRISES,
        "grades": palette.GRADES,
        "samplers": {
            name: {"help": spec.help, "takes": list(spec.takes)} for name, spec in specs().items()
        },
    }


def _strategy(name: Strategy) -> Json:
    state, deed = palette.MEANINGS.get(name, ("", ""))
    short, rare = palette.SHORT_NAMES.get(name, ""), name in palette.RARE
    return {
        **{"glyph": SWATCHES[name].glyph, "state": state, "deed": deed},
        **{"short": short, "rare": rare},
    }


def explanation(settings: Settings, record: Any = None) -> Json:
    """Return the regions of H and V with their scales, and why a recorded step was decided.

    Raises:
        RequestError: the record is none of a step.
    """
    profile = Profile.load(settings.profile)
    found: Json = {
        "tree": _regions(profile) if settings.sampler == TREE_SAMPLER else [],
        "scales": {name: scale._asdict() for name, scale in fitting_scales(profile).items()},
    }
    if record is None:
        return found
    try:
        step = Step.from_dict(record)
    except (ValueError, TypeError, AttributeError) as error:
        raise RequestError(f"step is no record of a step: {error}", "step") from None
    return found | {"step": _explained(profile if found["tree"] else None, step)}


def _regions(profile: Profile) -> list[Json]:
    """Return the strategies in the order of precedence, with their bounds; None is no bound."""
    return [
        {"strategy": row.strategy, "bounds": {n: _finite(*b) for n, b in row.bounds.items()}}
        for row in table(profile)
        if not any(low == math.inf for low, _ in row.bounds.values())
    ]


def _finite(*bounds: float) -> list[float | None]:
    return [bound if math.isfinite(bound) else None for bound in bounds]


def _explained(profile: Profile | None, step: Step) -> Json:
    why = explain(profile, step)
    measured = {name: getattr(step, name) for name in Metrics._fields}
    return {
        "heading": why.heading + ("" if step.fork else f", {ORIGINS.get(step.origin, '')}"),
        "outcome": why.outcome,
        "near": why.near_miss,
        "words": words(profile, measured) if profile else {},
        "cases": [_case(case, decided=case is why.reason) for case in why.cases],
        "branches": [
            {"text": one.text, "tokens": one.tokens, "lead": lead(one), "fate": fate(one)}
            for one in (step.fork.branches if step.fork else ())
        ],
    }


def _case(case: Case, decided: bool) -> Json:
    conditions = [
        {"met": one.met, "text": f"{one.verdict} ({one.distance:.2f})"} for one in case.conditions
    ]
    return {"strategy": case.strategy, "decided": decided, "conditions": conditions}
