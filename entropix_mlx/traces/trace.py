"""Traces: a generation as JSON Lines, written as it goes; `reading` reads them again.

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
field is removed or renamed, or its type, unit or meaning changes, `VERSION` goes up by one. Files
of a version in `FORMER` are read, and what is different in them is logged; `reading.read_trace`
refuses all others.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from .._version import installed_versions
from ..errors import TraceError
from ..files import without_waiting, writing
from ..palette import to_json
from ..profiles.fields import spell_infinities
from ..profiles.profile import Profile
from ..step import Step
from ..summary import Summary

FORMAT = "entropix trace"
"""What a header says it begins; no other file has it."""
VERSION = 3
"""Of the format; see above when it changes."""
FORMER = {
    1: "its forks were compared by mean log p − λ · mean H, and their leads are not known; margin"
    " and ask_margin of its profile counted nats",
    2: "some of its fields have other names (entropix_mlx/old_names.py)",
}
"""Former versions that can still be read, with what is said of them."""


@dataclass(frozen=True)
class Header:
    """The conditions of a generation."""

    model: str
    """Name of the model, for people."""
    sampler: str
    """Name of the sampler."""
    profile: Profile
    """All fields of the profile. Infinite numbers are the texts ``"inf"`` and ``"-inf"``."""
    seed: int
    """The seed of the draws."""
    messages: Sequence[dict[str, str]]
    """The prompt, as messages with ``role`` and ``content``."""
    context_length: int
    """Tokens that the model's context holds."""
    prompt_tokens: int
    """Tokens of the prompt, the chat template included."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of `Settings` that are not the default, without sampler and seed."""
    notes: str = ""
    """Absolute path of the folder of notes; empty without one."""
    versions: dict[str, str] = field(default_factory=installed_versions)
    """Versions of entropix_mlx, mlx and mlx-lm."""


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
        content["profile"] = spell_infinities(content["profile"])
        with writing(path, TraceError):
            # Closed by __exit__.
            self._file = open(path, "w", encoding="utf-8", opener=without_waiting)  # noqa: SIM115
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

    def record(
        self, steps: Iterable[Step], header: Header, before: Sequence[Step] = ()
    ) -> Generator[Step, None, None]:
        """Pass steps on, each after it is written to the next file.

        Args:
            steps: of the answer, as they come.
            header: how the file begins.
            before: steps that the answer took over from another; they are written first, and not
                passed on.
        """
        number = 1
        while (path := self._folder / f"{number:03}.jsonl").exists():
            number += 1
        return recorded(steps, path, header, before)


def make_folder(folder: str | Path) -> Path:
    """Make a folder for traces, if it is not there.

    Raises:
        TraceError: it cannot be made.
    """
    with writing(f"to the folder {folder}", TraceError):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def recorded(
    steps: Iterable[Step], path: str | Path, header: Header, before: Sequence[Step] = ()
) -> Generator[Step, None, None]:
    """Pass steps on, each after it is written to a trace that begins with those `before` them.

    Raises:
        TraceError: the file cannot be written.
    """
    with TraceWriter(path, header) as writer:
        for step in before:
            writer.add(step)
        for step in steps:
            writer.add(step)
            yield step
