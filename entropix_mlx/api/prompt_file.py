"""Files of prompts: a text file with one a line, or JSON Lines.

In a ``.jsonl`` file each prompt may have options of its own, named as the fields of `Settings`. An
error names the line and the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .. import limits
from ..errors import EntropixError, PromptError
from ..profiles.fields import hint, overlaid, shown
from ..records import from_record, parse_json
from ..settings import Settings, described

if TYPE_CHECKING:  # a file is read, and its mistakes are reported, before a model is loaded
    from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True)
class PromptLine:
    """One prompt of a file."""

    line: int  # where it begins in the file, from 1
    settings: Settings
    prompt: str | None = None  # the text to answer; None where there are messages
    messages: tuple[Mapping[str, str], ...] = ()  # a conversation to go on with
    system_prompt: str | None = None
    id: Any = None  # what the file calls the prompt; anything that JSON can hold

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
        """Return the token ids of the prompt; `bare` without the model's chat template. Raises
        `PromptError` if the template refuses the messages, or is needed and left out."""
        from .prompts import chat_prompt, conversation_prompt, text_prompt

        if not bare and self.prompt is None:
            return conversation_prompt(tokenizer, [dict(message) for message in self.messages])
        if not bare:
            return chat_prompt(tokenizer, self.prompt or "", self.system_prompt)
        if self.prompt is None or self.system_prompt is not None:
            raise PromptError("messages and system prompts need the chat template: do not skip it")
        return text_prompt(tokenizer, self.prompt)


@dataclass(frozen=True)
class _LineMessage:
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class _LineRecord:
    """A line without its options."""

    prompt: str | None = None
    messages: tuple[_LineMessage, ...] = ()
    system_prompt: str | None = None
    id: Any = None


_NAMES = tuple(_LineRecord.__dataclass_fields__)


def read_prompt_file(
    path: str | Path, settings: Settings | None = None, system_prompt: str | None = None
) -> list[PromptLine]:
    """Return the prompts of a file; blank lines are left out.

    A file whose name ends with ``.jsonl`` holds a JSON object a line, any other file a prompt a
    line. An object has ``prompt`` or ``messages``; it may have ``system_prompt``, ``id``, and any
    field of `Settings`. The arguments apply to what a line does not state. Raises `EntropixError`
    if the file cannot be read or has no prompt, or a line of it has a mistake; the message names
    the line.
    """
    text = limits.read_named(path, limits.PROMPTS_BYTES, PromptError)
    kind = Path(path).suffix.lower()
    if kind == ".csv":  # its header would be taken for a prompt
        raise PromptError(f"{path} is a table: write its prompts as JSON Lines (.jsonl)")
    records = json_lines(text, path) if kind == ".jsonl" else _text_lines(text)
    known: dict[str, Settings] = {}
    found: list[PromptLine] = []
    for line, record in records:
        with at_line(path, line):
            if len(found) == limits.ANSWERS:
                raise PromptError(f"more than {limits.ANSWERS:,} prompts: split the file")
            stated, options = _parsed(record)
            key = json.dumps(options, sort_keys=True)
            if key not in known:
                known[key] = _with(settings or Settings(), options)
            found.append(_prompt_line(line, stated, known[key], system_prompt))
    if not found:
        raise PromptError(f"{path} has no prompts: write one per line")
    return found


def _parsed(record: Any) -> tuple[_LineRecord, dict[str, Any]]:
    """Return what a line says, and the options that it states."""
    if not isinstance(record, dict):
        raise PromptError(f'write an object such as {{"prompt": "Why?"}}, not {shown(record)}')
    options = {name: value for name, value in record.items() if name not in _NAMES}
    for name in options:
        if name not in described():
            raise PromptError(f"unknown key {shown(name)}; {hint(name, (*_NAMES, *described()))}")
    if ("prompt" in record) == ("messages" in record):
        raise PromptError("give either a prompt or messages")
    try:
        return from_record(_LineRecord, record), options
    except ValueError as error:
        raise PromptError(str(error)) from None


def _with(settings: Settings, options: dict[str, Any]) -> Settings:
    if isinstance(options.get("changes"), dict):
        options = options | {"changes": overlaid(settings.changes, options["changes"])}
    own = replace(settings, **options)
    own.check()
    return own


def _prompt_line(
    line: int, stated: _LineRecord, settings: Settings, system_prompt: str | None
) -> PromptLine:
    system = system_prompt if stated.system_prompt is None else stated.system_prompt
    if stated.prompt is not None:
        if not stated.prompt.strip():
            raise PromptError("the prompt is empty: write a question")
        return PromptLine(line, settings, stated.prompt, system_prompt=system, id=stated.id)
    messages = [vars(message) for message in stated.messages]
    if not messages:
        raise PromptError("messages must be a list of at least one")
    if system is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return PromptLine(line, settings, messages=tuple(messages), id=stated.id)


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


def _text_lines(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(text):
        yield number, {"prompt": line.strip()}


def json_lines(text: str, path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield the numbers of the lines of a file, and what they say. Raises `PromptError` if a line
    is not JSON."""
    for number, line in _lines(text):
        with at_line(path, number):
            yield number, parse_json(line, "the line", PromptError)
