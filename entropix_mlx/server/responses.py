"""OpenAI's /v1/responses: the items of its input are a chat's messages, and so are its outputs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ..profiles.fields import shown
from . import requests
from .errors import RequestError
from .protocols import CALL, REASONING, TEXT, PartsProtocol
from .requests import Json

_PARTS: dict[str, tuple[Json, Json]] = {
    REASONING: ({"type": "reasoning", "summary": []}, {"type": "reasoning_text", "text": ""}),
    TEXT: (
        {"type": "message", "role": "assistant"},
        {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    ),
}
"""The items of the output that have content, and the only part of that."""
_ECHOED = {"instructions": None, "metadata": {}, "temperature": None, "top_p": None} | {
    **{"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    "text": {"format": {"type": "text"}},
}
"""Fields of a request that its response repeats, with their defaults."""


def _messages(items: Any) -> Any:
    """Return the items of an input as the messages of a chat."""
    if not isinstance(items, list):
        return [{"role": "user", "content": items}] if isinstance(items, str) else items
    messages: list[Any] = []
    for item in items:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "function_call":
            function = {name: item.get(name) for name in ("name", "arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not messages or messages[-1].get("role") != "assistant":
                messages.append({"role": "assistant", "tool_calls": []})
            messages[-1]["tool_calls"].append(call)
        elif kind == "function_call_output":
            result = {"role": "tool", "tool_call_id": item.get("call_id")}
            messages.append(result | {"content": item.get("output")})
        elif kind == "message":
            messages.append({**item, "tool_calls": []})
        elif kind != "reasoning":
            raise ValueError(f"has an item that is not supported: {shown(item)}")
    return messages


class ResponsesRequest(requests.ChatRequest):
    """The body of /v1/responses."""

    messages: Annotated[requests.Messages, BeforeValidator(_messages)] = Field(alias="input")
    instructions: requests.Content | None = None
    max_tokens: requests.MaxTokens = Field(None, alias="max_output_tokens")
    response_format: Annotated[
        requests.Format, BeforeValidator(requests.nested), requests.member("format")
    ] = Field(None, alias="text")
    tools: list[Annotated[requests.Tool, BeforeValidator(requests.nested)]] = Field(
        [], max_length=requests.MOST_TOOLS
    )
    tool_choice: Annotated[requests.ToolChoice, BeforeValidator(requests.nested)] = "auto"
    include: list[str] = Field([])
    reasoning_effort: Annotated[requests.Effort, requests.member("effort")] = Field(
        None, alias="reasoning"
    )
    n: Annotated[requests.Whole, Field(ge=1, le=1)] = 1
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"

    @property
    def prompts(self) -> Sequence[requests.Prompt]:
        return [[*requests.system_message(self.instructions), *super().prompts[0]]]

    @property
    def listed(self) -> int | None:
        is_listed = self.top_logprobs or "message.output_text.logprobs" in self.include
        return self.top_logprobs if is_listed else None


class ResponsesProtocol(PartsProtocol):
    """The output items and events of one response."""

    request = ResponsesRequest

    def __init__(self, body: Json) -> None:
        super().__init__(body)
        self._echoed = _ECHOED | {name: body[name] for name in _ECHOED if body.get(name)}
        self._number = 0

    def begin(self, chunk: Json, usage: Json) -> Iterator[Json]:
        self.result = {
            **{"id": _new_id("resp"), "object": "response", "created_at": int(time.time())},
            **{"status": "in_progress", "error": None, "incomplete_details": None, "output": []},
            **{"usage": None, "store": False, "model": chunk["model"], **self._echoed},
        }
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response={**self.result, "output": []})

    def open(self, kind: str, call: Json) -> Iterator[Json]:
        if kind == CALL:
            item = {"type": "function_call", "call_id": call["id"], "arguments": ""}
            item["name"] = call["function"]["name"]
        else:
            item, part = deepcopy(_PARTS[kind])
            item["content"] = []
        item |= {"id": _new_id(item["type"]), "status": "in_progress"}
        self.result["output"].append(item)
        yield self._about("output_item.added", item=deepcopy(item))
        if kind != CALL:
            item["content"].append(part)
            yield self._about("content_part.added", part=deepcopy(part))

    def grow(self, kind: str, more: str, logprobs: list[Json]) -> Iterator[Json]:
        item = self.result["output"][-1]
        if kind == CALL:
            item["arguments"] += more
            yield self._about("function_call_arguments.delta", delta=more)
            return
        [part] = item["content"]
        part["text"] += more
        if kind == TEXT:
            part["logprobs"] += logprobs
        listed = {"logprobs": logprobs} if kind == TEXT else {}
        yield self._about(f"{part['type']}.delta", delta=more, **listed)

    def close(self, kind: str) -> Iterator[Json]:
        item = self.result["output"][-1]
        if kind == CALL:
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._about("function_call_arguments.done", **done)
        else:
            [part] = item["content"]
            done = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._about(f"{part['type']}.done", **done)
            yield self._about("content_part.done", part=part)
        item["status"] = "completed"
        yield self._about("output_item.done", item=item)

    def end(self, choice: Json, usage: Json) -> Iterator[Json]:
        cut = choice["finish_reason"] == "length"
        status = "incomplete" if cut else "completed"
        details = {"reason": "max_output_tokens"} if cut else None
        self.result |= {"status": status, "incomplete_details": details}
        self.result |= {"entropix": choice["entropix"], "usage": _usage(usage)}
        yield self._event(f"response.{status}", response=self.result)

    def failed(self, error: RequestError) -> Json:
        described = {"code": error.code, "message": str(error), "param": error.param}
        return self._event("error", **described)

    def _event(self, kind: str, **fields: Any) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _about(self, kind: str, **fields: Any) -> Json:
        """Return an event about the last item; a text in it is the part of index 0."""
        last = self.result["output"][-1]
        place: Json = {"item_id": last["id"], "output_index": len(self.result["output"]) - 1}
        if "content" in last:
            place["content_index"] = 0
        return self._event(f"response.{kind}", **place, **fields)


def _usage(usage: Json) -> Json:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
