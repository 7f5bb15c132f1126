"""Traces: a generation as JSON Lines, written as it goes, and read again without a model.

Each line is one JSON object, and its key ``record`` says which kind of object:

==========  ======  ===========================================================
``record``  lines   other keys
==========  ======  ===========================================================
header      first   ``format``, ``version``, and the fields of `Header`
step        0 to n  the fields of `Step`, one line a token of the answer
footer      last    the totals: what `Summary.to_dict` returns
==========  ======  ===========================================================

Each line is written as soon as it is known, so a crash loses at most the last one. A file without
a footer is a recording that did not come to its end. ``docs/traces.md`` lists every field with its
unit.

How the format grows: a field may be *added* to a header, a step, a footer or a profile, and a new
kind of record may be added, without a new version. A reader ignores what it does not know; what an
old file lacks has a default, which for a profile is the value of the profile `reference`. If a
field is removed or renamed, or its type, unit or meaning changes, `VERSION` goes up by one, and
`read_trace` refuses files of another version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import EntropixError, TraceError
from ..files import writing
from ..palette import to_json
from ..profiles.profile import Profile
from ..records import from_record
from ..step import Step
from ..summary import Summary

FORMAT = "entropix trace"
"""What a header says it begins; no other file has it."""
VERSION = 1
"""Of the format; see above when it changes."""
PACKAGES = ("entropix_mlx", "mlx", "mlx-lm")
"""Packages whose versions a header names."""


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that a generation depends on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a source tree that was never installed
            found[package] = "unknown"
    return found


@dataclass(frozen=True)
class Header:
    """What a generation began with."""

    model: str
    """Name of the model, for people."""
    sampler: str
    """Name of the policy."""
    profile: Profile
    """Every number that the policy was given. In the file, an infinite threshold is the text
    ``"inf"`` or ``"-inf"``: JSON has no such number."""
    seed: int
    messages: Sequence[dict[str, str]]
    """The prompt, each message with its ``role`` and ``content``; the answer is in the steps."""
    context_length: int
    """The most tokens that the model can hold."""
    prompt_tokens: int
    """Tokens of the prompt, with those of the chat template."""
    versions: dict[str, str] = field(default_factory=installed_versions)


@dataclass(frozen=True)
class Trace:
    """A generation that was recorded."""

    header: Header
    steps: list[Step]
    totals: dict[str, Any] | None
    """The footer; None if the recording did not come to its end."""

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended: ``"stop"``, ``"length"`` or ``"interrupted"``; None if unknown."""
        reason = (self.totals or {}).get("finish_reason")
        if isinstance(reason, str):
            return reason
        return self.steps[-1].finish_reason if self.steps else None


class TraceWriter:
    """Writes a trace while the steps come; a context manager that ends it with the totals.

    Raises:
        TraceError: the file cannot be written.
    """

    def __init__(self, path: str | Path, header: Header) -> None:
        """Create the file and write the header."""
        self._path = path
        self._summary = Summary(header.prompt_tokens)
        content = asdict(header)
        content["profile"]["thresholds"] = _spell_infinities(content["profile"]["thresholds"])
        with writing(path, TraceError):
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by __exit__
        try:
            self._write("header", {"format": FORMAT, "version": VERSION} | content)
        except TraceError:
            self._close()
            raise

    def add(self, step: Step) -> None:
        """Write a step."""
        self._summary.add(step)
        self._write("step", step.to_dict())

    def __enter__(self) -> TraceWriter:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write the footer and close the file."""
        totals = self._summary.to_dict()
        if error is not None:
            totals["finish_reason"] = "interrupted"
        try:
            self._write("footer", totals)
        finally:
            self._close()

    def _close(self) -> None:
        with writing(self._path, TraceError):  # what could not be written is tried once more
            self._file.close()

    def _write(self, record: str, content: dict[str, Any]) -> None:
        line = to_json({"record": record} | content)
        with writing(self._path, TraceError):
            self._file.write(line + "\n")
            self._file.flush()


class TraceFolder:
    """A folder in which each answer of a conversation is recorded: 001.jsonl, 002.jsonl, …

    Raises:
        TraceError: the folder cannot be made, or a file in it cannot be written.
    """

    def __init__(self, folder: str | Path, model: str) -> None:
        """Make the folder if it is not there; files that are there stay.

        Args:
            folder: where to write.
            model: the model's name, for the headers.
        """
        self.model = model
        self._folder = make_folder(folder)

    def begin(self, header: Header) -> TraceWriter:
        """Begin the next file."""
        number = 1
        while (path := self._folder / f"{number:03}.jsonl").exists():
            number += 1
        return TraceWriter(path, header)


def make_folder(folder: str | Path) -> Path:
    """Make a folder for traces, if it is not there.

    Raises:
        TraceError: it cannot be made.
    """
    with writing(f"to the folder {folder}", TraceError):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def recorded(steps: Iterable[Step], path: str | Path, header: Header) -> Iterator[Step]:
    """Pass steps on, each after it is written to a trace.

    Raises:
        TraceError: the file cannot be written.
    """
    with TraceWriter(path, header) as writer:
        for step in steps:
            writer.add(step)
            yield step


def read_trace(path: str | Path) -> Trace:
    """Read a trace; a last line that was cut off is left out.

    Raises:
        TraceError: there is no such file, it is not a trace of this version, or a line of it is
            damaged; the message names the line and the field.
    """
    try:
        # A file that was cut off may end within a character.
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    # Not splitlines: it also splits at U+2028 and its like, which may stand inside a text.
    lines = text.removesuffix("\n").split("\n")
    header = _read_header(path, lines[0])
    steps: list[Step] = []
    totals = None
    for number, line in enumerate(lines[1:], 2):
        try:
            content = _parse(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise _damaged(path, number, error) from error
        try:
            if content["record"] == "step":
                steps.append(_read_step(content, len(steps)))
            elif content["record"] == "footer":
                totals = {key: value for key, value in content.items() if key != "record"}
        except ValueError as error:
            raise _damaged(path, number, error) from error
    return Trace(header, steps, totals)


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
        raise TraceError(f"{path} is not a trace: name a file that --trace wrote")
    version = content.get("version")
    if version != VERSION:
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
        fields = vars(header) | {"profile": _read_profile(header.profile, str(path))}
        return Header(**fields)
    except (ValueError, EntropixError) as error:
        raise _damaged(path, 1, error) from error


@dataclass(frozen=True)
class _HeaderRecord(Header):
    """A header as it stands in a file: the profile is not checked yet."""

    profile: dict[str, Any]  # type: ignore[assignment]


def _read_profile(record: dict[str, Any], source: str) -> Profile:
    """Return the profile of a header.

    What the file lacks, because it is older, is taken from `reference`. What this program does not
    know, because the file is newer, is left out.
    """
    known = asdict(Profile.load())
    changes: dict[str, Any] = {}
    for key in record.keys() & known.keys():
        changes[key] = record[key]
        if isinstance(record[key], dict) and known[key]:  # not the calibration, a free record
            changes[key] = {n: v for n, v in record[key].items() if n in known[key]}
    if isinstance(changes.get("thresholds"), dict):
        changes["thresholds"] = _read_infinities(changes["thresholds"])
    return Profile.load().replace(changes, source)


def _spell_infinities(thresholds: dict[str, float]) -> dict[str, float | str]:
    """Return thresholds as JSON can hold them: it knows no infinities."""
    return {name: str(v) if math.isinf(v) else v for name, v in thresholds.items()}


def _read_infinities(thresholds: dict[str, Any]) -> dict[str, Any]:
    return {name: float(v) if v in ("inf", "-inf") else v for name, v in thresholds.items()}


def _damaged(path: str | Path, number: int, error: Exception) -> TraceError:
    rest = "" if number == 1 else ", or delete the line and all after it"
    return TraceError(f"{path}, line {number} is damaged: {error}; record the answer again{rest}")
