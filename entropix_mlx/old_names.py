"""Names that changed: profiles and traces that were written before can still be read.

Readers pass what they parsed through `of_profile` or `of_step` before they check it, so no other
module knows an old name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

SECTIONS = {"policies": "samplers", "confidence": "position_score"}
"""Sections of a profile: then, now."""
OPTIONS = {
    "n_sigma": ("top_n_sigma", "n_sigma"),
    "adaptive_min_entropy": ("adaptive_temperature", "min_entropy"),
    "adaptive_polynomial": ("adaptive_temperature", "polynomial"),
}
"""Fields of [baselines] that are options of a sampler now."""
STEP = {
    "branch": "fork",
    "confidence": "position_score",
    "guessed": "proposed",
    "kept": "accepted",
    "wish": "triggered_at",
}
"""Fields of a step of traces of version 1 and 2: then, now."""
FORK = {"rollouts": "branches", "side_tokens": "lookahead_tokens"}  # fields of its fork
JUDGE = "judge"
"""Chose a fork's first branch against the score; the fork is read as one that the score chose."""
KEYS = {
    "transcript.thoughts": "transcript.reasoning",
    "chat.save": "app.save",
    "transcript.pageup": "app.pageup",
    "transcript.pagedown": "app.pagedown",
}
"""Actions to which a configuration file gives keys."""
SETTINGS = {"lookup": "speculation"}
"""Fields of `Settings` in headers of traces."""

_COMPARED = (
    "the entropy of the branches of a fork is no part of their comparison any more (it changed no"
    " winner), and margin and ask_margin count standard errors now: delete the line, and look at"
    " those two"
)
_NO_JUDGE = dict.fromkeys(
    ("judge", "judge_text", "judge_yes", "judge_no"),
    "forks are compared by their branches' log probabilities alone: delete the line",
)
_DSLIDER_RUN = "the sampler dslider_run is gone, use dslider: delete the table"
REMOVED = {
    "branch": {"entropy_weight": _COMPARED} | _NO_JUDGE,
    "cntp": {"entropy_weight": _COMPARED} | _NO_JUDGE,
    "resample": {"excludes_top": "the most probable token may always be drawn: delete the line"},
    "samplers": {"dslider_run": _DSLIDER_RUN},
}
"""Fields of a profile that are gone, by section: what is logged where a file states one."""

_log = logging.getLogger(__name__)


def of_profile(changes: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the fields of a profile, by section, under today's names; log those that are gone."""
    left = _with_options(_renamed(changes, SECTIONS))
    for section, removed in REMOVED.items():
        fields = left.get(section)
        if not isinstance(fields, Mapping):
            continue
        for name in removed.keys() & fields.keys():
            _log.info("%s: %s.%s is ignored: %s", source, section, name, removed[name])
        left[section] = {name: value for name, value in fields.items() if name not in removed}
    return left


def _with_options(changes: dict[str, Any]) -> dict[str, Any]:
    """Return fields with each of `OPTIONS` where it belongs; what is stated there wins."""
    baselines, stated = changes.get("baselines"), changes.get("samplers", {})
    if not isinstance(baselines, Mapping) or not isinstance(stated, Mapping):
        return changes
    samplers = dict(stated)
    for name in OPTIONS.keys() & baselines.keys():
        sampler, option = OPTIONS[name]
        own = samplers.get(sampler, {})
        if isinstance(own, Mapping):
            samplers[sampler] = {option: baselines[name], **own}
    rest = {name: value for name, value in baselines.items() if name not in OPTIONS}
    return changes | {"baselines": rest, "samplers": samplers}


def of_step(record: Mapping[str, Any]) -> dict[str, Any]:
    step = _renamed(record, STEP)
    if isinstance(step.get("fork"), Mapping):
        step["fork"] = _renamed(step["fork"], FORK)
        if step["fork"].get("chosen_by") == JUDGE:
            step["fork"]["chosen_by"] = "score"
    return step


def of_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(record, SETTINGS)


def _renamed(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a record with old names replaced; a field under today's name wins."""
    renamed = {names.get(name, name): value for name, value in record.items()}
    return renamed | {name: value for name, value in record.items() if name in names.values()}
