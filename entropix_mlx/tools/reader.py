"""Reading an answer that may begin with reasoning and end with calls, as it grows."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .formats import CallFormat, Parse

_DECODER = json.JSONDecoder(parse_int=str)  # of any length
ID_LENGTH = 9
"""Letters and digits in the id of a call, which is what Mistral's templates take."""


@dataclass
class Call:
    """A call of a function, as far as it was read."""

    name: str
    start: int
    """Where it begins in the answer, in characters."""
    id: str = field(default_factory=lambda: secrets.token_hex(ID_LENGTH)[:ID_LENGTH])
    arguments: str = ""
    end: int | None = None
    """Where its arguments end; None while they do not."""


@dataclass(frozen=True)
class Addition:
    """What a part of an answer adds: to its text, or to the arguments of a call."""

    text: str
    call: int | None = None
    """The index of the call; its first piece is empty."""


class CallReader:
    """Separates an answer's text from its calls."""

    def __init__(self, form: CallFormat, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._format = form
        self._tools = tools
        self._waiting = ""
        self._read = 0
        self._inside = False
        """Whether the text is behind the mark of the first call."""
        self.calls: list[Call] = []

    def add(self, text: str) -> list[Addition]:
        """Return what a text adds; what may yet become a mark waits."""
        self._waiting += text
        return list(self._pieces())

    def finish(self) -> list[Addition]:
        """Return what is left when the answer has ended."""
        left = list(self._pieces())
        rest = self._take(len(self._waiting))
        if not self._inside:
            left.append(Addition(rest))
        elif self._format.parse is not None:
            left += self._parsed(rest, self._format.parse)
        return left

    def _pieces(self) -> Iterator[Addition]:
        if not self._inside:
            yield from self._before_calls()
        if not self._inside:
            return
        if self._format.parse is not None:
            yield from self._marked(self._format.after, self._format.parse)
        else:
            yield from self._written(self._format)

    def _before_calls(self) -> Iterator[Addition]:
        form, waiting = self._format, self._waiting
        if not form.start:
            # The answer is a call from its first character on, or has none.
            found = 0 if not self._read and waiting.startswith(form.marker) else -1
            held = len(waiting) if not self._read and form.marker.startswith(waiting) else 0
        else:
            found, held = waiting.find(form.marker), _overlap(waiting, form.marker)
        self._inside = found >= 0
        ready = found if self._inside else len(waiting) - held
        if ready:
            yield Addition(self._take(ready))

    def _written(self, form: CallFormat) -> Iterator[Addition]:
        while self._waiting:
            if not self.calls or self.calls[-1].end is not None:
                header = form.header.search(self._waiting)
                if header is None:
                    return
                self._begin(header["name"], self._read + header.start())
                self._take(header.end())
                yield Addition("", len(self.calls) - 1)
            call = self.calls[-1]
            known = len(call.arguments)
            end = _object_end(call.arguments + self._waiting) if "}" in self._waiting else None
            text = self._take(len(self._waiting) if end is None else end - known)
            call.arguments += text
            call.end = None if end is None else self._read
            yield Addition(text, len(self.calls) - 1)

    def _marked(self, end: str, parse: Parse) -> Iterator[Addition]:
        while end in self._waiting:
            yield from self._parsed(self._take(self._waiting.index(end) + len(end)), parse)

    def _parsed(self, text: str, parse: Parse) -> Iterator[Addition]:
        """Yield the calls that mlx-lm's parser finds; a text without any stays text."""
        body = text.strip().removeprefix(self._format.start).removesuffix(self._format.after)
        if not body.strip():
            return
        try:
            found = parse(body, list(self._tools))
        except Exception:  # parsers raise what they like at what is no call
            yield Addition(text)
            return
        for one in found if isinstance(found, list) else [found]:
            call = self._begin(str(one["name"]), self._read - len(text))
            call.arguments = json.dumps(one["arguments"], ensure_ascii=False)
            call.end = self._read
            yield Addition("", len(self.calls) - 1)
            yield Addition(call.arguments, len(self.calls) - 1)

    def _begin(self, name: str, start: int) -> Call:
        self.calls.append(Call(name, start))
        return self.calls[-1]

    def _take(self, length: int) -> str:
        taken, self._waiting = self._waiting[:length], self._waiting[length:]
        self._read += length
        return taken


def _object_end(text: str) -> int | None:
    """Return where the JSON object ends that a text begins with; None where it does not yet."""
    try:
        return _DECODER.raw_decode(text)[1]
    except (ValueError, RecursionError):
        return None


def _overlap(text: str, marker: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    lengths = range(min(len(marker), len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)


class ReasoningReader:
    """Separates the reasoning that an answer may begin with from what follows it."""

    def __init__(self, start: str, end: str, is_open: bool) -> None:
        """Begin an answer; `is_open` says whether its prompt has begun the reasoning already."""
        self._start = "" if is_open else start
        """The mark that has to come first; empty when it has come."""
        self._end = end
        """The mark that has to come then; empty when nothing is reasoning any more."""
        self._waiting = ""
        self._lines = ""
        """Line breaks between the reasoning and the answer, which belong to neither."""

    @property
    def inside(self) -> bool:
        return bool(self._end) and not self._start

    def add(self, text: str) -> tuple[str, str]:
        """Return what a text adds to the reasoning, and to what follows it."""
        self._waiting += text
        if self._start:
            written = self._waiting.lstrip()
            if self._start != written and self._start.startswith(written):
                return "", ""
            if written.startswith(self._start):
                self._waiting = written.removeprefix(self._start)
            else:
                self._end = ""
            self._start = ""
        reasoning = ""
        if self._end:
            reasoning, ended, rest = self._waiting.partition(self._end)
            if not ended:
                ready = len(reasoning) - _overlap(reasoning, self._end)
                self._waiting = reasoning[ready:]
                return reasoning[:ready], ""
            self._waiting, self._end, self._lines = rest, "", "\n"
        rest = self._waiting.lstrip(self._lines)
        self._waiting, self._lines = "", self._lines if not rest else ""
        return reasoning, rest

    def finish(self) -> tuple[str, str]:
        """Return what waited for more when the answer ended."""
        rest, self._waiting = self._waiting, ""
        return (rest, "") if self._end and not self._start else ("", rest)
