"""From a chat's response to that of another protocol, whole or event by event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...profiles.fields import shown
from ..openai.body import Body
from ..openai.errors import RequestError

Json = dict[str, Any]


class Translator:
    """Translates one response; the whole is what its events add up to."""

    def __init__(self) -> None:
        self.result: Json = {}
        """The response so far."""

    def events(self, chunk: Json, usage: Json) -> Iterator[Json]:
        """Yield the events of a chunk, each with its `type`; chunks without a choice have none."""
        raise NotImplementedError

    def failed(self, error: Json) -> Json:
        """Return the event of an error, given OpenAI's description of it."""
        raise NotImplementedError

    def whole(self, response: Json) -> Json:
        [choice] = response["choices"]
        chunk = {**response, "choices": [{**choice, "delta": choice["message"]}]}
        for _ in self.events(chunk, response["usage"]):
            pass
        return self.result


def read_parts(content: Any, where: str, known: tuple[str, ...] = ("text",)) -> str:
    """Return the text of a content that may come in parts of the known types."""
    parts = [{"type": known[0], "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise RequestError(
            f"{where} must be a text or a list of parts, not {shown(content)}", where
        )
    return "".join(_read_part(part, where, known) for part in parts)


def _read_part(part: Any, where: str, known: tuple[str, ...]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in known or not isinstance(part.get("text"), str):
        message = f"{where} has a part of type {shown(kind)}: this model reads text"
        raise RequestError(message, where, code="unsupported")
    return str(part["text"])


def read_tools(body: Body, convert: Callable[[Any], Any]) -> Any:
    """Return the tools of a request as chats have them; what is no list is left to be refused."""
    tools = body.get("tools")
    return [convert(tool) for tool in tools] if isinstance(tools, list) else tools


def check_absent(body: Body, names: tuple[str, ...]) -> None:
    """Refuse fields by which another answer would be meant than the one there would be."""
    for name in names:
        if body.get(name) not in (None, False, [], "disabled", {"type": "disabled"}):
            raise RequestError(f"{name} is not supported: leave it out", name, code="unsupported")
