"""Protocols: the model of their requests, and their responses made of those of chats."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from .errors import RequestError
from .requests import AnswerRequest, ChatRequest, Json, ListedTokens, TextRequest

REASONING, TEXT, CALL = "reasoning", "text", "call"
"""Kinds of parts of a response."""


class Protocol:
    """One response to a request; here, in the shapes of chats and completions themselves."""

    request: ClassVar[type[AnswerRequest]] = TextRequest
    done = b"data: [DONE]\n\n"
    """What ends a stream."""

    def __init__(self, body: Json) -> None:
        self.body = body
        """Of the request."""

    def events(self, chunk: Json, usage: Json) -> Iterator[Json]:
        """Yield the server-sent events of a chunk."""
        yield chunk

    def whole(self, response: Json) -> Json:
        """Return the response that is not streamed."""
        return response

    @classmethod
    def described(cls, error: RequestError) -> Json:
        return error.body

    def failed(self, error: RequestError) -> Json:
        """Return the event of an error in a stream."""
        return self.described(error)


class ChatProtocol(Protocol):
    """That of /v1/chat/completions."""

    request = ChatRequest


class _ScoreRequest(TextRequest):
    logprobs: ListedTokens = Field(0, alias="top_logprobs")
    echo: Literal[True] = True
    stream: Literal[False] = False
    max_tokens: Literal[0] = 0


class ScoreProtocol(Protocol):
    """That of /v1/score: a completion that repeats its prompt and adds nothing."""

    request = _ScoreRequest

    def whole(self, response: Json) -> Json:
        """Return each text's log probability in nats, and those of its tokens after the first."""
        data = [
            {
                **{"object": "score", "index": choice["index"], "logprobs": choice["logprobs"]},
                "score": math.fsum(choice["logprobs"]["token_logprobs"][1:]),
            }
            for choice in response["choices"]
        ]
        frame = {name: response[name] for name in ("id", "created", "model", "usage")}
        return {"object": "list", **frame, "data": data}


class PartsProtocol(Protocol):
    """A protocol in which a response has parts: the reasoning, the text and calls.

    One part grows at a time. The methods yield events with their `type`, and keep the whole
    response that these add up to.
    """

    done = b""

    def __init__(self, body: Json) -> None:
        super().__init__(body)
        self.result: Json = {}
        """The response so far."""
        self._open: str | None = None
        """The kind of the part that grows."""

    @abstractmethod
    def begin(self, chunk: Json, usage: Json) -> Iterator[Json]: ...

    @abstractmethod
    def open(self, kind: str, call: Json) -> Iterator[Json]: ...

    @abstractmethod
    def grow(self, kind: str, more: str, logprobs: list[Json]) -> Iterator[Json]: ...

    @abstractmethod
    def close(self, kind: str) -> Iterator[Json]: ...

    @abstractmethod
    def end(self, choice: Json, usage: Json) -> Iterator[Json]: ...

    def events(self, chunk: Json, usage: Json) -> Iterator[Json]:
        if not self.result:
            yield from self.begin(chunk, usage)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            logprobs = (choice["logprobs"] or {}).get("content", [])
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
