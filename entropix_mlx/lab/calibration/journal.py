"""What a long measurement has found so far, in a file: stopped at any moment, it can go on.

A journal is JSON Lines. Its first line says what is measured; each other line is one finding, with
the stage and number that it is found again by, written in one go as soon as it is known.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import OutputError
from ...files import write_whole, writing


class Journal:
    """Findings by stage and number; with no path they are kept in memory alone."""

    def __init__(
        self, path: Path | None = None, subject: Any = None, *, resume: bool = False
    ) -> None:
        """Begin a file, or go on with one.

        Args:
            path: the file; a folder for it is there.
            subject: what is measured, as JSON can hold it; that of a file must be the same.
            resume: go on with a file if there is one; otherwise it is written anew.

        Raises:
            OutputError: the file cannot be read or written, or measures something else.
        """
        self._path = path
        self._found: dict[tuple[str, int], Any] = {}
        if path is None:
            return
        with writing(path, OutputError):
            old = path.read_bytes() if resume and path.exists() else b""
        lines = old.split(b"\n")[:-1]  # what follows the last line end was cut off
        if lines:
            self._take_up(lines, subject)
        whole = b"".join(line + b"\n" for line in lines) or _line(subject)
        if whole != old:
            with writing(path, OutputError):
                write_whole(path, whole.decode("utf-8"))

    def get(self, stage: str, number: int) -> Any:
        """Return a finding; None if it is missing."""
        return self._found.get((stage, number))

    def add(self, stage: str, number: int, finding: Any) -> None:
        """Keep a finding.

        Raises:
            OutputError: the file cannot be written.
        """
        self._found[stage, number] = finding
        if self._path is not None:
            with writing(self._path, OutputError), self._path.open("ab", buffering=0) as file:
                file.write(_line([stage, number, finding]))

    def close(self) -> None:
        """Remove the file: the measurement is complete.

        Raises:
            OutputError: it cannot be removed.
        """
        if self._path is not None:
            with writing(self._path, OutputError):
                self._path.unlink(missing_ok=True)

    def _take_up(self, lines: list[bytes], subject: Any) -> None:
        try:
            first, *rest = [json.loads(line) for line in lines]
            found = {(str(stage), int(number)): finding for stage, number, finding in rest}
        except (ValueError, TypeError, RecursionError) as error:
            raise OutputError(
                f"{self._path} is damaged: begin anew without --resume ({error})"
            ) from error
        if first != json.loads(_line(subject)):
            raise OutputError(
                f"{self._path} is of another calibration (model, prompts, seed or tokens differ):"
                " begin anew without --resume, or name another --output"
            )
        self._found = found


def _line(value: Any) -> bytes:
    return (json.dumps(value) + "\n").encode("utf-8")
