"""OpenAI's /v1/responses: the items of its input are a chat's messages, and so are its outputs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar

from ...profiles.fields import shown
from ..model_info import ServedModel
from ..openai.errors import RequestError
from ..openai.fields import Json
from ..openai.requests import CompletionRequest
from .translator import CALL, TEXT, Translator, as_list, as_object, chat_of, split, text_of

_FIELDS = (
    *("input", "instructions", "max_output_tokens", "text", "tools", "tool_choice", "include"),
    *("top_logprobs", "reasoning", "stream_options"),
)
_LOGPROBS = "message.output_text.logprobs"


def parse_responses(body: Json, served: ServedModel) -> CompletionRequest:
    """Return the chat that a request means.

    Raises:
        RequestError: a field is wrong.
    """
    own, others = split(body, (*_FIELDS, "thinking_budget"))
    tools, best = own["tools"], own["top_logprobs"]
    include = own["include"] if isinstance(own["include"], list) else []
    messages: list[Json] = []
    if own["instructions"] is not None:
        content = text_of(own["instructions"], "instructions")
        messages.append({"role": "system", "content": content})
    for item in as_list(own["input"], "input"):
        _add_item(messages, item)
    chat = {
        **others,
        "messages": messages,
        "max_tokens": own["max_output_tokens"],
        "tools": [_nested(tool, "function") for tool in tools]
        if isinstance(tools, list)
        else tools,
        "tool_choice": _nested(own["tool_choice"], "function"),
        "response_format": _nested(as_object(own["text"], "text").get("format"), "json_schema"),
        "logprobs": True if best or _LOGPROBS in include else None,
        "top_logprobs": best,
        "reasoning_effort": as_object(own["reasoning"], "reasoning").get("effort"),
        "thinking_budget": own["thinking_budget"],
    }
    return chat_of(chat, served, _ResponseTranslator(body))


def _add_item(messages: list[Json], item: Json) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        content = text_of(item.get("content"), "input")
        messages.append({"role": item.get("role"), "content": content})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        result = {"role": "tool", "tool_call_id": item.get("call_id")}
        messages.append({**result, "content": text_of(item.get("output"), "input")})
    elif kind != "reasoning":
        message = f"input has an item of type {shown(kind)}, which is not supported"
        raise RequestError(message, "input", code="unsupported")


def _nested(value: Any, kind: str) -> Any:
    """Return an object of a type as chats have it: what it says is below the type's name."""
    if not isinstance(value, dict) or value.get("type") != kind:
        return value
    return {"type": kind, kind: {name: item for name, item in value.items() if name != "type"}}


class _ResponseTranslator(Translator):
    """The output items and events of one response."""

    params: ClassVar[Mapping[str, str]] = {
        **{"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text"},
        "reasoning_effort": "reasoning",
    }

    def __init__(self, body: Json) -> None:
        super().__init__()
        self._body = body
        self._number = 0

    def begin(self, chunk: Json, usage: Json) -> Iterator[Json]:
        body = self._body
        self.result = {
            **{"id": _new_id("resp"), "object": "response", "created_at": int(time.time())},
            **{"status": "in_progress", "error": None, "incomplete_details": None, "output": []},
            **{"usage": None, "store": False, "model": chunk["model"]},
            **{"instructions": body.get("instructions"), "metadata": body.get("metadata") or {}},
            **{"tools": body.get("tools") or [], "tool_choice": body.get("tool_choice") or "auto"},
            "text": body.get("text") or {"format": {"type": "text"}},
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            **{"temperature": body.get("temperature"), "top_p": body.get("top_p")},
        }
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response={**self.result, "output": []})

    def open(self, kind: str, call: Json) -> Iterator[Json]:
        item: Json = {"type": "reasoning", "summary": [], "content": []}
        if kind == TEXT:
            item = {"type": "message", "role": "assistant", "content": []}
        elif kind == CALL:
            item = {"type": "function_call", "call_id": call["id"], "arguments": ""}
            item["name"] = call["function"]["name"]
        item |= {"id": _new_id(item["type"]), "status": "in_progress"}
        self.result["output"].append(item)
        yield self._about("output_item.added", item=deepcopy(item))
        if kind != CALL:
            part: Json = {"type": "reasoning_text", "text": ""}
            if kind == TEXT:
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
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
        also = {"logprobs": logprobs} if kind == TEXT else {}
        yield self._about(f"{part['type']}.delta", delta=more, **also)

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
        counts = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }
        details = {"reason": "max_output_tokens"} if cut else None
        self.result |= {"status": status, "incomplete_details": details, "usage": counts}
        self.result["entropix"] = choice["entropix"]
        yield self._event(f"response.{status}", response=self.result)

    def failed(self, error: Json) -> Json:
        return self._event("error", **{n: error.get(n) for n in ("code", "message", "param")})

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


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
