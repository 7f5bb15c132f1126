"""OpenAI's /v1/responses: the items of its input are a chat's messages, and so are its outputs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from ...profiles.fields import shown
from ..model_info import ServedModel
from ..openai.errors import RequestError
from ..openai.fields import Json
from ..openai.requests import CompletionRequest
from .translator import CALL, TEXT, Translator, as_object, chat_of, read_parts, split

_FIELDS = (
    *("input", "instructions", "max_output_tokens", "text", "tools", "tool_choice", "store"),
    *("include", "top_logprobs", "stream_options", "reasoning", "prompt_cache_retention"),
    *("prompt_cache_options", "context_management"),
)
_UNSUPPORTED = (
    *("background", "conversation", "max_tool_calls", "moderation", "prompt", "truncation"),
    *("messages", "n", "max_tokens", "max_completion_tokens", "response_format", "logprobs"),
    *("reasoning_effort", "prompt_logprobs", "previous_response_id"),
)
_LOGPROBS = "message.output_text.logprobs"
_PARAMS = {"messages": "input", "max_completion_tokens": "max_output_tokens"}
_REPEATED = (
    *("instructions", "max_output_tokens", "temperature", "top_p", "text", "tool_choice", "tools"),
    "metadata",
)
_DEFAULTS: Json = {
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "metadata": {},
}
"""Fields that a response repeats, and what they are where a request has none."""
_TEXTS = ("input_text", "output_text", "text")


def parse_responses(body: Json, served: ServedModel) -> CompletionRequest:
    """Return the chat that a request means.

    Raises:
        RequestError: a field is wrong.
    """
    own, others = split(body, _FIELDS, _UNSUPPORTED)
    include, best, tools = own["include"] or [], own["top_logprobs"], own["tools"]
    if not isinstance(include, list):
        raise RequestError(f"include must be a list, not {shown(include)}", "include")
    instructions = own["instructions"]
    if not isinstance(instructions, str | None):
        message = f"instructions must be a text, not {shown(instructions)}"
        raise RequestError(message, "instructions")
    system = [] if instructions is None else [{"role": "system", "content": instructions}]
    chat = {
        **others,
        "messages": [*system, *_read_input(own["input"])],
        "max_completion_tokens": own["max_output_tokens"],
        "tools": [_nested(tool) for tool in tools] if isinstance(tools, list) else tools,
        "tool_choice": _choice(own["tool_choice"]),
        "response_format": _format(as_object(own["text"], "text")),
        "logprobs": True if best or _LOGPROBS in include else None,
        "top_logprobs": best,
        "reasoning_effort": as_object(own["reasoning"], "reasoning").get("effort"),
    }
    return chat_of(chat, served, _ResponseTranslator(body), _PARAMS)


def _read_input(given: Any) -> list[Json]:
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise RequestError(f"input must be a text or a list of items, not {shown(given)}", "input")
    messages: list[Json] = []
    for number, item in enumerate(items):
        where = f"input[{number}]"
        if not isinstance(item, dict):
            raise RequestError(f"{where} must be an object, not {shown(item)}", "input")
        _add_item(messages, item, where)
    return messages


def _add_item(messages: list[Json], item: Json, where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        content = read_parts(item.get("content"), where, _TEXTS)
        messages.append({"role": item.get("role"), "content": content})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        _calling(messages)["tool_calls"].append(call)
    elif kind == "function_call_output":
        result = {"role": "tool", "tool_call_id": item.get("call_id")}
        messages.append({**result, "content": read_parts(item.get("output"), where, _TEXTS)})
    elif kind != "reasoning":
        message = f"{where} has the type {shown(kind)}, which is not supported"
        raise RequestError(message, "input", code="unsupported")


def _calling(messages: list[Json]) -> Json:
    """Return the message of the assistant that the next call belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", [])
    return messages[-1]


def _nested(tool: Any) -> Any:
    """Return a tool as chats have it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _format(text: Json) -> Any:
    form = text.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        named = {name: value for name, value in form.items() if name != "type"}
        return {"type": "json_schema", "json_schema": named}
    return form


class _ResponseTranslator(Translator):
    """The output items and events of one response."""

    def __init__(self, body: Json) -> None:
        super().__init__()
        self._body = body
        self._number = 0

    def begin(self, chunk: Json, usage: Json) -> Iterator[Json]:
        stated = {name: self._body.get(name) for name in _REPEATED}
        defaults = {name: stated[name] or value for name, value in _DEFAULTS.items()}
        effort = as_object(self._body.get("reasoning"), "reasoning").get("effort")
        parallel = self._body.get("parallel_tool_calls") is not False
        self.result = {
            **stated,
            **defaults,
            **{"id": _new_id("resp"), "object": "response", "created_at": int(time.time())},
            **{"status": "in_progress", "error": None, "incomplete_details": None, "output": []},
            **{"usage": None, "store": False, "truncation": "disabled", "model": chunk["model"]},
            **{"parallel_tool_calls": parallel, "reasoning": {"effort": effort, "summary": None}},
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
        index = len(self.result["output"]) - 1
        yield self._event("response.output_item.added", output_index=index, item=deepcopy(item))
        if kind != CALL:
            part: Json = {"type": "reasoning_text", "text": ""}
            if kind == TEXT:
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"].append(part)
            yield self._about("response.content_part.added", part=deepcopy(part))

    def grow(self, kind: str, more: str, logprobs: list[Json]) -> Iterator[Json]:
        item = self.result["output"][-1]
        if kind == CALL:
            item["arguments"] += more
            yield self._about("response.function_call_arguments.delta", delta=more)
            return
        [part] = item["content"]
        part["text"] += more
        also = {}
        if kind == TEXT:
            part["logprobs"] += logprobs
            also = {"logprobs": logprobs}
        yield self._about(f"response.{part['type']}.delta", delta=more, **also)

    def close(self, kind: str) -> Iterator[Json]:
        item = self.result["output"][-1]
        if kind == CALL:
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._about("response.function_call_arguments.done", **done)
        else:
            [part] = item["content"]
            done = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._about(f"response.{part['type']}.done", **done)
            yield self._about("response.content_part.done", part=part)
        item["status"] = "completed"
        index = len(self.result["output"]) - 1
        yield self._event("response.output_item.done", output_index=index, item=item)

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
        named = {name: error.get(name) for name in ("code", "message", "param")}
        return self._event("error", **named)

    def _event(self, kind: str, **fields: Any) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _about(self, kind: str, **fields: Any) -> Json:
        """Return an event about the last item; a text in it is the part of index 0."""
        last = self.result["output"][-1]
        place = {"item_id": last["id"], "output_index": len(self.result["output"]) - 1}
        if "content" in last:
            place["content_index"] = 0
        return self._event(kind, **place, **fields)


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
