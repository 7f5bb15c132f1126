"""Traces: a generation as JSON Lines, written as it goes and read again without a model.

Each line is one JSON object, and its key ``record`` says which kind of object:

==========  ======  ===========================================================
``record``  lines   other keys
==========  ======  ===========================================================
header      first   ``format``, ``version``, and the fields of `Header`
step        0 to n  the fields of `Step`, one line a token of the answer
attention   0 to n  the fields of `Attended`, behind the steps, if asked for
footer      last    the totals: what `Summary.to_dict` returns
==========  ======  ===========================================================

Each line is written as soon as it is known. A file without a footer is a recording that was cut
off.

Fields and kinds of records may be added without a new version: a reader ignores those that it does
not know, and gives those that an old file lacks a default, in a profile that of `reference`. Only a
profile with an unknown field is refused: the text was decided by a number that this version does
not have. If a field is removed or renamed, or its type, unit or meaning changes, `VERSION` goes up.

A trace may come from another version, be cut off, or be edited by hand: every field is checked, and
an error names the line and the field.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from .. import limits
from .._version import installed_versions
from ..errors import ProfileError, TraceError
from ..files import without_waiting, write_line, writing
from ..profiles.fields import spell_infinities
from ..profiles.profile import Profile
from ..records import from_record, to_json
from ..step import Attended, Step
from ..summary import Summary

FORMAT = "entropix trace"  # the header's `format`; no other file has it
VERSION = 1  # of the format; see above when it changes

Attention = Callable[[Sequence[int]], Iterable[Attended]]
"""Returns what each token of an answer looked at, given their ids."""


@dataclass(frozen=True)
class Header:
    """How a generation began."""

    model: str
    sampler: str
    profile: Profile  # in the file, an infinite threshold is the text "inf" or "-inf"
    seed: int
    messages: Sequence[dict[str, str]]  # the prompt, each with its role and content
    context_length: int
    prompt_tokens: int  # with those of the chat template
    options: dict[str, Any] = field(default_factory=dict)  # settings that are not the default
    notes: str = ""  # absolute path of the folder of notes, if there is one
    versions: dict[str, str] = field(default_factory=installed_versions)


@dataclass(frozen=True)
class Trace:
    """A generation that was recorded."""

    header: Header
    steps: list[Step]
    totals: dict[str, Any] | None  # the footer; None if the recording was cut off
    attention: dict[int, Attended] = field(default_factory=dict)  # by the index of the step

    @property
    def finish_reason(self) -> str | None:
        """That of the last step, or ``"interrupted"``; None if unknown."""
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
        self._path = path
        self._summary = Summary(header.prompt_tokens)
        content = vars(header) | {"profile": spell_infinities(header.profile.model_dump())}
        with writing(path, TraceError):
            self._file = FileIO(path, "w", opener=without_waiting)
        try:
            self._write("header", {"format": FORMAT, "version": VERSION} | content)
        except TraceError:
            self._file.close()
            raise

    def add(self, step: Step) -> None:
        self._summary.add(step)
        self._write("step", step.to_dict())

    def add_attention(self, attended: Attended) -> None:
        self._write("attention", asdict(attended))

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        totals = self._summary.to_dict()
        if error is not None:
            totals["finish_reason"] = "interrupted"
        try:
            self._write("footer", totals)
        finally:
            self._file.close()

    def _write(self, record: str, content: dict[str, Any]) -> None:
        with writing(self._path, TraceError):
            write_line(self._file, to_json({"record": record} | content))


class TraceFolder:
    """A folder in which each answer of a conversation is recorded: 001.jsonl, 002.jsonl, …

    Raises:
        TraceError: the folder cannot be made, or a file in it cannot be written.
    """

    def __init__(self, folder: str | Path, model: str) -> None:
        self.model = model
        self._folder = Path(folder)
        with writing(f"to the folder {folder}", TraceError):
            self._folder.mkdir(parents=True, exist_ok=True)

    def record(
        self, steps: Iterable[Step], header: Header, before: Sequence[Step] = ()
    ) -> Generator[Step, None, None]:
        """Pass the steps of an answer on, as `recorded` does, into the next file."""
        number = 1
        while (path := self._folder / f"{number:03}.jsonl").exists():
            number += 1
        return recorded(steps, path, header, before)


def recorded(
    steps: Iterable[Step],
    path: str | Path,
    header: Header,
    before: Sequence[Step] = (),
    attention: Attention | None = None,
) -> Generator[Step, None, None]:
    """Pass steps on, each after it is written to a trace.

    Args:
        steps: the answer, or what follows of it.
        path: of the trace.
        header: its first line.
        before: steps that the answer took over from another; they are only written.
        attention: called behind the last step, if what tokens looked at is recorded.

    Raises:
        TraceError: the file cannot be written.
    """
    tokens = [step.token for step in before]
    with TraceWriter(path, header) as writer:
        for step in before:
            writer.add(step)
        for step in steps:
            writer.add(step)
            tokens.append(step.token)
            yield step
        if attention is not None:
            for attended in attention(tokens):
                writer.add_attention(attended)


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a whole trace.

    Raises:
        TraceError: the file cannot be written.
    """
    deque(recorded(trace.steps, path, trace.header), maxlen=0)


def read_trace(path: str | Path) -> Trace:
    """Read a trace; a last line that was cut off is left out.

    Raises:
        TraceError: there is no such file, it is not a trace of this version, or a line of it is
            damaged; the message names the line and the field.
    """
    lines = limits.read_lines(path, limits.TRACE_BYTES, TraceError, whole=False)
    _, first = next(lines, (1, b""))
    header = _read_header(path, first)
    steps: list[Step] = []
    totals = None
    attention: dict[int, Attended] = {}
    for number, line in lines:
        try:
            content = _parse(line)
            if content["record"] == "step":
                steps.append(_read_step(content, len(steps)))
            elif content["record"] == "attention":
                attended = _read_attended(content, len(steps))
                attention[attended.index] = attended
            elif content["record"] == "footer":
                totals = {key: value for key, value in content.items() if key != "record"}
        except ValueError as error:
            if line.endswith(b"\n"):  # else it was cut off
                raise _damaged(path, number, error) from error
    return Trace(header, steps, totals, attention)


def _parse(line: bytes) -> dict[str, Any]:
    """Return the object of a line, which has the key ``record``.

    Raises:
        ValueError: the line is something else.
    """
    try:
        content = json.loads(line.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error
    if not isinstance(content, dict) or "record" not in content:
        raise ValueError("it must be an object with the key record")
    return content


def _read_step(content: dict[str, Any], index: int) -> Step:
    step = Step.from_dict(content)
    if step.index != index:
        raise ValueError(f"index must be {index}, since it counts the steps, not {step.index}")
    return step


def _read_attended(content: dict[str, Any], steps: int) -> Attended:
    attended = from_record(Attended, content)
    if not 0 <= attended.index < steps:
        raise ValueError(f"index must be that of a step, not {attended.index}")
    before = range(attended.index)
    if not all(
        len(pair) == 2 and pair[0] in before and 0 <= pair[1] <= 1 for pair in attended.tokens
    ):
        raise ValueError("tokens must be pairs of an earlier step's index and a share from 0 to 1")
    return attended


def _read_header(path: str | Path, line: bytes) -> Header:
    try:
        content = _parse(line)
    except ValueError:
        content = {}
    if content.get("format") != FORMAT:
        raise TraceError(
            f"{path} is not a trace: name a file that --trace or entropix read --output wrote"
        )
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
        profile = Profile.load().replace(header.profile, "profile")
        return Header(**vars(header) | {"profile": profile})
    except (ValueError, ProfileError, RecursionError) as error:
        raise _damaged(path, 1, error) from error


@dataclass(frozen=True)
class _HeaderRecord(Header):
    """A header as it stands in a file: the profile is not checked yet."""

    profile: dict[str, Any]  # type: ignore[assignment]


def _damaged(path: str | Path, number: int, error: Exception) -> TraceError:
    if isinstance(error, ProfileError):
        advice = "read it with the version of entropix that wrote it"
    else:
        advice = "record the answer again"
    rest = "" if number == 1 else ", or delete the line and all after it"
    return TraceError(f"{path}, line {number} is damaged: {error}; {advice}{rest}")
