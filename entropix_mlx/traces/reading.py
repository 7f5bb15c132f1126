"""Reading traces, without a model; `trace` describes them.

A trace may come from another version, be cut off, or be edited by hand: every field is checked, and
what is wrong is said with the number of its line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import limits, old_names
from ..errors import EntropixError, TraceError
from ..profiles.profile import Profile
from ..records import from_record
from ..step import Step
from .trace import FORMAT, FORMER, VERSION, Header, Trace

IN_NATS = ("margin", "ask_margin")
"""Fields of the sections about forks that had another unit in version 1."""

_log = logging.getLogger(__name__)


def read_trace(path: str | Path) -> Trace:
    """Read a trace; a last line that was cut off is left out.

    Raises:
        TraceError: there is no such file, it is not a trace of this version, or a line of it is
            damaged; the message names the line and the field.
    """
    lines = _lines(path)
    header = _read_header(path, next(lines, ""))
    steps: list[Step] = []
    totals = None
    damage: TraceError | None = None
    for number, line in enumerate(lines, 2):
        if damage:  # it was not the last line
            raise damage
        try:
            content = _parse(line)
        except ValueError as error:
            damage = _damaged(path, number, error)
            continue
        try:
            if content["record"] == "step":
                steps.append(_read_step(content, len(steps)))
            elif content["record"] == "footer":
                totals = {key: value for key, value in content.items() if key != "record"}
        except ValueError as error:
            raise _damaged(path, number, error) from error
    return Trace(header, steps, totals)


def _lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a file.

    Only a line feed ends one: U+2028 and its like may stand inside a text. A file that was cut off
    may end within a character.
    """
    try:
        with limits.open_regular(Path(path), limits.TRACE_BYTES) as file:
            while line := file.readline(limits.TRACE_LINE_BYTES + 1):
                if len(line) > limits.TRACE_LINE_BYTES:
                    raise TraceError(f"{path} is not a trace: a line of it is too long for one")
                yield line.removesuffix(b"\n").decode("utf-8", "replace")
    except (OSError, ValueError) as error:  # a ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"cannot read {path}: {reason}") from error


def _parse(line: str) -> dict[str, Any]:
    """Return the object of a line, which has the key ``record``.

    Raises:
        ValueError: the line is something else.
    """
    try:
        content = json.loads(line)
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error
    if not isinstance(content, dict) or "record" not in content:
        raise ValueError("it is no object with the key record")
    return content


def _read_step(content: dict[str, Any], index: int) -> Step:
    step = Step.from_dict(content)
    if step.index != index:
        raise ValueError(f"index must be {index}, since it counts the steps, not {step.index}")
    return step


def _read_header(path: str | Path, line: str) -> Header:
    try:
        content = _parse(line)
    except ValueError:
        content = {}
    if content.get("format") != FORMAT:
        raise TraceError(
            f"{path} is not a trace: name a file that --trace or entropix read --output wrote"
        )
    version = content.get("version")
    if isinstance(version, int) and version in FORMER:
        _log.info("%s is a trace of version %d: %s", path, version, FORMER[version])
    elif version != VERSION:
        advice = "upgrade entropix_mlx to read it"
        if not (isinstance(version, int) and version > VERSION):
            advice = "read it with the program that wrote it"
        raise TraceError(
            f"{path} has another version of the trace format, and this program reads version"
            f" {VERSION}: {advice}"
        )
    try:
        # By default a header names the versions installed here, which did not write this file.
        header = from_record(_HeaderRecord, {"versions": {}} | content)
        for message in header.messages:
            if not {"role", "content"} <= message.keys():
                raise ValueError("each of messages must have a role and a content")
        profile = _read_profile(header.profile, str(path), version)
        options = old_names.of_settings(header.options)
        fields = vars(header) | {"profile": profile, "options": options}
        return Header(**fields)
    except (ValueError, EntropixError, RecursionError) as error:
        raise _damaged(path, 1, error) from error


@dataclass(frozen=True)
class _HeaderRecord(Header):
    """A header as it stands in a file: the profile is not checked yet."""

    profile: dict[str, Any]  # type: ignore[assignment]


def _read_profile(record: dict[str, Any], source: str, version: int) -> Profile:
    """Return the profile of a header of a version.

    What the file lacks, because it is older, is taken from `reference`. What this program does not
    know, because the file is newer, is left out.
    """
    known = asdict(Profile.load())
    record = old_names.of_profile(record, source)
    changes: dict[str, Any] = {}
    for key in record.keys() & known.keys():
        changes[key] = record[key]
        if isinstance(record[key], dict) and known[key]:  # not the calibration, a free record
            changes[key] = {n: v for n, v in record[key].items() if n in known[key]}
        if version == 1 and key in ("branch", "cntp") and isinstance(changes[key], dict):
            changes[key] = {n: v for n, v in changes[key].items() if n not in IN_NATS}
    return Profile.load().replace(changes, source)


def _damaged(path: str | Path, number: int, error: Exception) -> TraceError:
    rest = "" if number == 1 else ", or delete the line and all after it"
    return TraceError(f"{path}, line {number} is damaged: {error}; record the answer again{rest}")
