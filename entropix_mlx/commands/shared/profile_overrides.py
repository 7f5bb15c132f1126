"""What --set and the options about interventions change in a profile."""

from __future__ import annotations

import argparse
import tomllib
from typing import Any

from ...errors import ProfileError
from ...profiles.profile import Profile


def changes_of(assignment: str) -> dict[str, Any]:
    """Return the fields of the profile that one --set changes.

    Raises:
        ProfileError: it is no assignment, or of a field or value that does not exist.
    """
    source = f"--set {assignment}"
    parsed = _parse_assignment(assignment, source)
    Profile.load().replace(parsed, source)  # a mistake is told of this option
    return parsed


def _parse_assignment(assignment: str, source: str) -> dict[str, Any]:
    """Read ``section.field=value``: it is a line of TOML."""
    try:
        changes = tomllib.loads(assignment)
    except ValueError as error:
        raise ProfileError(
            f"{source}: not FIELD=VALUE with a TOML value (a text needs quotes): {error}"
        ) from error
    if not changes:
        raise ProfileError(f"{source}: nothing is set; write FIELD=VALUE")
    return changes


def interventions(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the fields that --think, --no-think, --no-branch and --branch-… change."""
    branches: dict[str, Any] = {}
    if arguments.no_branch:
        branches["max_branches"] = 0
    if arguments.branch_width is not None:
        branches["width"] = arguments.branch_width
    if arguments.branch_depth is not None:
        branches["depth"] = arguments.branch_depth
    think = {}
    if arguments.think:
        think["max_insertions"] = Profile.load().think.max_insertions
    if arguments.no_think:
        think["max_insertions"] = 0
    return {"think": think, "branch": branches, "cntp": branches}
