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
STEP = {
    "branch": "fork",
    "confidence": "position_score",
    "guessed": "proposed",
    "kept": "accepted",
    "wish": "triggered_at",
}
"""Fields of a step of traces of version 1 and 2: then, now."""
FORK = {"rollouts": "branches", "side_tokens": "lookahead_tokens"}
"""Fields of its fork."""
KEYS = {"transcript.thoughts": "transcript.reasoning"}
"""Actions to which a configuration file gives keys."""

_COMPARED = (
    "the entropy of the branches of a fork is no part of their comparison any more (it changed no"
    " winner), and margin and ask_margin count standard errors now: delete the line, and look at"
    " those two"
)
REMOVED = {"branch": {"entropy_weight": _COMPARED}, "cntp": {"entropy_weight": _COMPARED}}
"""Fields of a profile that are gone, by section: what is logged where a file states one."""

_log = logging.getLogger(__name__)


def of_profile(changes: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the fields of a profile under today's names; log those that are gone.

    Args:
        changes: fields by section.
        source: where they stand, for messages.
    """
    left = _renamed(changes, SECTIONS)
    for section, removed in REMOVED.items():
        fields = left.get(section)
        if not isinstance(fields, Mapping):
            continue
        for name in removed.keys() & fields.keys():
            _log.info("%s: %s.%s is ignored: %s", source, section, name, removed[name])
        left[section] = {name: value for name, value in fields.items() if name not in removed}
    return left


def of_step(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a step under today's names."""
    step = _renamed(record, STEP)
    if isinstance(step.get("fork"), Mapping):
        step["fork"] = _renamed(step["fork"], FORK)
    return step


def _renamed(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a record with old names replaced; a field under today's name wins."""
    renamed = {names.get(name, name): value for name, value in record.items()}
    return renamed | {name: value for name, value in record.items() if name in names.values()}
