"""An answer as a file to keep or to share: which one, the suffix says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import TraceError
from ..files import write_whole
from .card import card, card_png
from .report import render
from .trace import Trace, TraceWriter

PICTURES: Mapping[str, Callable[[Trace], str | bytes]] = {".svg": card, ".png": card_png}
TRACE, REPORT = ".jsonl", ".html"


def rendered(traces: Sequence[Trace], suffix: str) -> str | bytes:
    """Return answers as a picture, where the suffix is one of those, or else as a report.

    Raises:
        TraceError: there are too many answers.
        OutputError: what draws PNG is not installed.
    """
    picture = PICTURES.get(suffix.lower())
    if picture is None:
        return render(traces)
    if len(traces) != 1:
        raise TraceError("a picture shows one answer: name one trace, or write an .html file")
    return picture(traces[0])


def share(trace: Trace, path: Path) -> None:
    """Write an answer as what the suffix says: a trace, a picture, or else a report.

    Raises:
        TraceError, OutputError, OSError: as for `rendered`, or the file cannot be written.
    """
    if path.suffix != TRACE:
        write_whole(path, rendered([trace], path.suffix))
        return
    with TraceWriter(path, trace.header) as written:
        for step in trace.steps:
            written.add(step)
