"""Fields of a profile that there are no more: they are passed over, and what changed is logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

_COMPARED = (
    "the entropy of the ways of a fork is no part of their comparison any more (it changed no"
    " winner), and margin and ask_margin count standard errors now: delete the line, and look at"
    " those two"
)
REMOVED = {"branch": {"entropy_weight": _COMPARED}, "cntp": {"entropy_weight": _COMPARED}}
"""By section and field: what is said where an older file states it."""

_log = logging.getLogger(__name__)


def without_removed(changes: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the fields of a profile that there still are; of the others, log what changed.

    Args:
        changes: fields by section.
        source: where they stand, for messages.
    """
    left = dict(changes)
    for section, removed in REMOVED.items():
        fields = changes.get(section)
        if not isinstance(fields, Mapping):
            continue
        for name in removed.keys() & fields.keys():
            _log.info("%s: %s.%s is passed over: %s", source, section, name, removed[name])
        left[section] = {name: value for name, value in fields.items() if name not in removed}
    return left
