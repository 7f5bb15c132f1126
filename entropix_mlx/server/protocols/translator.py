"""From a chat's response to that of another protocol, whole or event by event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ...profiles.fields import shown
from ..model_info import ServedModel
from ..openai.errors import RequestError
from ..openai.fields import Json, unknown_field
from ..openai.requests import WITHOUT_EFFECT, ChatFields, CompletionRequest, parse_chat

REASONING, TEXT, CALL = "reasoning", "text", "call"
"""Kinds of parts of a response."""
SHARED = {*ChatFields.model_fields} - {
    *("messages", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "n"),
    *("response_format", "logprobs", "top_logprobs", "stream_options"),
    *("reasoning_effort", "thinking_budget"),
}
"""Fields of a chat that other protocols take, too."""
NOTHING: tuple[Any, ...] = (None, False, [], "disabled")
"""Values by which an unsupported field asks for nothing."""


class Translator:
    """Translates one response; the whole is what its events add up to.

    A response has parts: the reasoning, the text and calls, of which one grows at a time. Each of
    the methods that a protocol has yields events with their `type`.
    """

    params: ClassVar[Mapping[str, str]] = {}
    """The protocol's names of the fields of a chat, where they differ."""

    def __init__(self) -> None:
        self.result: Json = {}
        """The response so far."""
        self._open: str | None = None
        """The kind of the part that grows."""

    def begin(self, chunk: Json, usage: Json) -> Iterator[Json]:
        raise NotImplementedError

    def open(self, kind: str, call: Json) -> Iterator[Json]:
        """Begin a part: `REASONING`, `TEXT`, or a `CALL`, which is a chat's."""
        raise NotImplementedError

    def grow(self, kind: str, more: str, logprobs: list[Json]) -> Iterator[Json]:
        raise NotImplementedError

    def close(self, kind: str) -> Iterator[Json]:
        raise NotImplementedError

    def end(self, choice: Json, usage: Json) -> Iterator[Json]:
        raise NotImplementedError

    def failed(self, error: Json) -> Json:
        """Return the event of an error, given OpenAI's description of it."""
        raise NotImplementedError

    def events(self, chunk: Json, usage: Json) -> Iterator[Json]:
        """Yield the events of a chunk; chunks without a choice have none."""
        if not self.result:
            yield from self.begin(chunk, usage)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            logprobs = (choice.get("logprobs") or {}).get("content", [])
            yield from self._write(REASONING, delta.get("reasoning_content"), [])
            yield from self._write(TEXT, delta.get("content"), logprobs)
            for call in delta.get("tool_calls") or ():
                if "id" in call:
                    yield from self._begin(CALL, call)
                if arguments := call["function"]["arguments"]:
                    yield from self.grow(CALL, arguments, [])
            if choice["finish_reason"] is not None:
                yield from self._finish()
                yield from self.end(choice, usage)

    def whole(self, response: Json) -> Json:
        [choice] = response["choices"]
        chunk = {**response, "choices": [{**choice, "delta": choice["message"]}]}
        for _ in self.events(chunk, response["usage"]):
            pass
        return self.result

    def _write(self, kind: str, text: str | None, logprobs: list[Json]) -> Iterator[Json]:
        if text:
            if self._open != kind:
                yield from self._begin(kind, {})
            yield from self.grow(kind, text, logprobs)

    def _begin(self, kind: str, call: Json) -> Iterator[Json]:
        yield from self._finish()
        self._open = kind
        yield from self.open(kind, call)

    def _finish(self) -> Iterator[Json]:
        kind, self._open = self._open, None
        if kind is not None:
            yield from self.close(kind)


def chat_of(chat: Json, served: ServedModel, translator: Translator) -> CompletionRequest:
    """Return the request that a chat means.

    Raises:
        RequestError: a field is wrong; the error names that of the protocol.
    """
    try:
        return replace(parse_chat(chat, served), translator=translator)
    except RequestError as error:
        error.param = translator.params.get(str(error.param), error.param)
        raise


def split(body: Json, own: tuple[str, ...]) -> tuple[Json, Json]:
    """Return the fields of a protocol's own, and those that a chat has, too.

    Raises:
        RequestError: there is a field that means something, and has no meaning here.
    """
    known = {*own, *SHARED, *WITHOUT_EFFECT}
    for name, value in body.items():
        if name not in known and value not in NOTHING:
            raise unknown_field(name, name, known)
    others = {name: value for name, value in body.items() if name in SHARED}
    return {name: body.get(name) for name in own}, others


def as_object(value: Any, where: str) -> Json:
    """Return an object; where there is none, an empty one.

    Raises:
        RequestError: it is something else.
    """
    if not isinstance(value, dict | None):
        raise RequestError(f"{where} must be an object, not {shown(value)}", where)
    return value or {}


def as_list(value: Any, where: str) -> list[Any]:
    """Return a list of something; a text is one message of the user.

    Raises:
        RequestError: it is something else.
    """
    listed = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed:
        raise RequestError(f"{where} must be a list of messages, not {shown(value)}", where)
    for number, item in enumerate(listed):
        if not isinstance(item, dict):
            raise RequestError(f"{where}[{number}] must be an object, not {shown(item)}", where)
    return listed


def text_of(content: Any, param: str) -> str:
    """Return the text of a content that may come in parts.

    Raises:
        RequestError: it is something else.
    """
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise RequestError(f"{param} has a content that is no text: {shown(content)}", param)
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(
            part.get("text"), str
        ):
            message = f"{param} has a part of type {shown(kind)}: this model reads text"
            raise RequestError(message, param, code="unsupported")
    return "".join(part["text"] for part in parts)
