"""Traces: a generation as JSON Lines, written as it goes, and read again without a model.

The first line is a header, each line after it a step, the last one a footer with totals. The key
``record`` says which; a crash loses at most the last line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import EntropixError, TraceError
from ..profiles.profile import Profile
from ..step import Step
from ..summary import Summary

FORMAT = "entropix trace"
VERSION = 1
PACKAGES = ("entropix_mlx", "mlx", "mlx-lm")


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
    sampler: str
    profile: Profile
    seed: int
    messages: Sequence[dict[str, str]]
    """The prompt; the answer is in the steps."""
    context_length: int
    """The most tokens that the model can hold."""
    prompt_tokens: int
    versions: dict[str, str] = field(default_factory=installed_versions)


@dataclass(frozen=True)
class Trace:
    """A generation that was recorded."""

    header: Header
    steps: list[Step]
    totals: dict[str, Any] | None
    """None where the recording did not come to its end."""


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
        try:
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise _cannot_write(path, error) from error
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
        try:
            self._file.close()
        except OSError as error:  # what could not be written is tried once more
            raise _cannot_write(self._path, error) from error

    def _write(self, record: str, content: dict[str, Any]) -> None:
        line = json.dumps({"record": record} | content, ensure_ascii=False)
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise _cannot_write(self._path, error) from error


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
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"cannot write to the folder {folder}: {error.strerror}") from error
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


def read_trace(path: str | Path) -> Trace:
    """Read a trace; a last line that was cut off is left out.

    Raises:
        TraceError: there is no such file, or it is not a trace.
    """
    try:
        # A file that was cut off may end within a character.
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    # Not splitlines: it also splits at U+2028 and its like, which may stand inside a text.
    lines = text.removesuffix("\n").split("\n")
    header = _parse_header(path, lines[0])
    steps: list[Step] = []
    totals = None
    for number, line in enumerate(lines[1:], 2):
        try:
            content = json.loads(line)
            record = content.pop("record")
            if record == "step":
                steps.append(Step.from_dict(content))
            elif record == "footer":
                totals = content
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == len(lines):
                break
            raise TraceError(f"{path}, line {number} is damaged: {error!r}") from error
    return Trace(header, steps, totals)


def _parse_header(path: str | Path, line: str) -> Header:
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise TraceError(f"{path} is not a trace: name a file that --trace wrote")
    if content.pop("version", None) != VERSION:
        raise TraceError(f"{path} is of another version: use the program that wrote it")
    content.pop("record", None)
    try:
        profile = content["profile"]
        profile["thresholds"] = _read_infinities(profile["thresholds"])
        # What a later version of the profile has more is as in the reference.
        content["profile"] = Profile.load().replace(profile, str(path))
        return Header(**content)
    except (AttributeError, KeyError, TypeError, ValueError, EntropixError) as error:
        raise TraceError(f"{path}, line 1 is damaged: {error}") from error


def _spell_infinities(thresholds: dict[str, float]) -> dict[str, float | str]:
    """Return thresholds as JSON can hold them: it knows no infinities."""
    return {name: str(v) if math.isinf(v) else v for name, v in thresholds.items()}


def _read_infinities(thresholds: dict[str, Any]) -> dict[str, Any]:
    return {name: float(v) if v in ("inf", "-inf") else v for name, v in thresholds.items()}


def _cannot_write(path: str | Path, error: OSError) -> TraceError:
    return TraceError(f"cannot write {path}: {error.strerror}")
