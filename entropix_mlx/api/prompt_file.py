"""Files of prompts: a text file with one a line, JSON Lines, or CSV with a header.

In ``.jsonl`` and ``.csv`` files each prompt may have options of its own, named as the fields of
`Settings`. Messages about a mistake name its line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import limits
from ..errors import EntropixError, PromptError
from ..profiles.fields import hint, overlaid, shown
from ..records import parse_json
from ..settings import Settings, described

if TYPE_CHECKING:  # a file is read, and its mistakes are reported, before a model is loaded
    from mlx_lm.tokenizer_utils import TokenizerWrapper

ROLES = ("system", "user", "assistant")
_OPTIONS = tuple(described())
_KEYS = ("prompt", "messages", "system_prompt", "id", *_OPTIONS)
_TEXTS = ("prompt", "system_prompt", "id", *(o.name for o in described().values() if o.is_text))
"""Columns of a CSV file that hold text; all others hold JSON, such as a number."""


@dataclass(frozen=True)
class PromptLine:
    """One prompt of a file."""

    line: int
    """Where it begins in the file, from 1."""
    settings: Settings
    prompt: str | None = None
    """The text to answer; None where there are messages."""
    messages: tuple[Mapping[str, str], ...] = ()
    """A conversation to go on with."""
    system_prompt: str | None = None
    """Instructions that precede the prompt."""
    id: Any = None
    """What the file calls it; anything that JSON can hold."""

    @property
    def content(self) -> dict[str, Any]:
        if self.prompt is None:
            return {"messages": [dict(message) for message in self.messages]}
        system = {} if self.system_prompt is None else {"system_prompt": self.system_prompt}
        return {"prompt": self.prompt} | system

    @property
    def question(self) -> str:
        return self.prompt if self.prompt is not None else str(self.messages[-1]["content"])

    def tokens(self, tokenizer: TokenizerWrapper, *, bare: bool = False) -> list[int]:
        """Return the token ids of the prompt; `bare` without the model's chat template.

        Raises:
            PromptError: the template refuses the messages, or is needed and left out.
        """
        from .prompts import chat_prompt, conversation_prompt, text_prompt

        if not bare and self.prompt is None:
            return conversation_prompt(tokenizer, [dict(message) for message in self.messages])
        if not bare:
            return chat_prompt(tokenizer, self.prompt or "", self.system_prompt)
        if self.prompt is None or self.system_prompt is not None:
            raise PromptError("messages and system prompts need the chat template: do not skip it")
        return text_prompt(tokenizer, self.prompt)


def read_prompt_file(
    path: str | Path, settings: Settings | None = None, system_prompt: str | None = None
) -> list[PromptLine]:
    """Return the prompts of a file; blank lines are left out.

    The end of the file's name says what it is: ``.jsonl`` holds a JSON object a line, ``.csv`` a
    header and records, any other file a prompt a line. An object or record has ``prompt``, or in
    JSON ``messages``; it may have ``system_prompt``, ``id``, and any field of `Settings`. The
    arguments hold where a line says nothing else.

    Raises:
        EntropixError: the file cannot be read or has no prompt, or a line of it has a mistake; the
            message names the line.
    """
    text = limits.read_named(path, limits.PROMPTS_BYTES, PromptError)
    read = {".jsonl": json_lines, ".csv": _csv_records}.get(Path(path).suffix.lower(), _text_lines)
    reader = _LineReader(settings or Settings(), system_prompt)
    found: list[PromptLine] = []
    records = read(text, path)
    for line, record in records:
        with at_line(path, line):
            if len(found) == limits.ANSWERS:
                raise PromptError(f"more than {limits.ANSWERS:,} prompts: split the file")
            found.append(reader.read(line, record))
    if not found:
        raise PromptError(f"{path} has no prompts: write one per line")
    return found


@contextmanager
def at_line(path: str | Path, line: int) -> Iterator[None]:
    """Put the line of a file before the message of whatever goes wrong with it."""
    try:
        yield
    except EntropixError as error:
        raise type(error)(f"{path}, line {line}: {error}") from error


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank; U+2028 and its like may stand inside one."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _text_lines(text: str, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(text):
        yield number, {"prompt": line.strip()}


def json_lines(text: str, path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield what the lines of a file say, with their numbers.

    Raises:
        PromptError: a line is not JSON.
    """
    for number, line in _lines(text):
        with at_line(path, number):
            yield number, parse_json(line, "the line", PromptError)


def _csv_records(text: str, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a CSV file; an empty cell is as good as none."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    first = 1
    while True:
        with at_line(path, first):
            try:
                cells = next(rows, None)
            except csv.Error as error:
                raise PromptError(f"not CSV: {error}; close every quote") from error
            if cells is None:
                return
            if not header:
                header = _header(cells)
            elif any(cell.strip() for cell in cells):
                yield first, _cells(header, cells)
        first = rows.line_num + 1


def _header(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if "prompt" not in names:
        raise PromptError('the header has no column "prompt": begin with a line of column names')
    for name in names:
        _check_key(name, "column")
    if len(set(names)) < len(names):
        raise PromptError("the header names a column twice: leave one out")
    return names


def _cells(header: list[str], cells: list[str]) -> dict[str, Any]:
    if len(cells) > len(header):
        raise PromptError(
            f"{len(cells)} cells under {len(header)} columns: quote a text that holds a comma"
        )
    return {
        name: cell if name in _TEXTS else parse_json(cell, name, PromptError)
        for name, cell in zip(header, cells, strict=False)
        if cell.strip()
    }


def _check_key(name: str, word: str) -> None:
    if name not in _KEYS:
        raise PromptError(f"unknown {word} {shown(name)}; {hint(name, _KEYS)}")


class _LineReader:
    """Turns the records of a file into prompts."""

    def __init__(self, settings: Settings, system_prompt: str | None) -> None:
        self._settings = settings
        self._system_prompt = system_prompt
        self._known: dict[str, Settings] = {}

    def read(self, line: int, record: Any) -> PromptLine:
        """Return the prompt of a record.

        Raises:
            EntropixError: it has a mistake.
        """
        if not isinstance(record, dict):
            raise PromptError(f'write an object such as {{"prompt": "Why?"}}, not {shown(record)}')
        for key in record:
            _check_key(key, "key")
        if ("prompt" in record) == ("messages" in record):
            raise PromptError("give either a prompt or messages")
        options = {name: record[name] for name in _OPTIONS if name in record}
        made = PromptLine(line, self._with(options), id=record.get("id"))
        system = _optional_text(record, "system_prompt", self._system_prompt)
        if "prompt" in record:
            prompt = _optional_text(record, "prompt", None)
            if not (prompt or "").strip():
                raise PromptError("the prompt is empty: write a question")
            return replace(made, prompt=prompt, system_prompt=system)
        messages = [_message(message) for message in _list(record["messages"])]
        if system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        return replace(made, messages=tuple(messages))

    def _with(self, options: dict[str, Any]) -> Settings:
        key = json.dumps(options, sort_keys=True)
        if key not in self._known:
            if isinstance(options.get("changes"), dict):
                options = options | {
                    "changes": overlaid(self._settings.changes, options["changes"])
                }
            settings = replace(self._settings, **options)
            settings.check()
            self._known[key] = settings
        return self._known[key]


def _optional_text(record: Mapping[str, Any], name: str, default: str | None) -> str | None:
    value = record.get(name, default)
    if value is not None and not isinstance(value, str):
        raise PromptError(f"{name} must be a text, not {shown(value)}")
    return value


def _list(messages: Any) -> Sequence[Any]:
    if not isinstance(messages, list) or not messages:
        raise PromptError(f"messages must be a list of at least one, not {shown(messages)}")
    return messages


def _message(message: Any) -> dict[str, str]:
    fits = isinstance(message, dict) and set(message) == {"role", "content"}
    if not fits or not isinstance(message["content"], str) or message["role"] not in ROLES:
        raise PromptError(
            f"a message is an object with role ({', '.join(ROLES)}) and content, a text; not"
            f" {shown(message)}"
        )
    return {"role": message["role"], "content": message["content"]}
