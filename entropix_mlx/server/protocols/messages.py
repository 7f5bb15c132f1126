"""Anthropic's /v1/messages: its content blocks are a chat's texts, calls and results."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ..model_info import ServedModel
from ..openai.errors import RequestError
from ..openai.fields import Json
from ..openai.requests import CompletionRequest
from .translator import (
    CALL,
    REASONING,
    TEXT,
    Translator,
    as_list,
    as_object,
    chat_of,
    split,
    text_of,
)

PATH = "/v1/messages"

_FIELDS = (
    *("system", "messages", "max_tokens", "stop_sequences", "tools", "tool_choice"),
    *("output_config", "thinking"),
)
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def parse_messages(body: Json, served: ServedModel) -> CompletionRequest:
    """Return the chat that a request means.

    Raises:
        RequestError: a field is wrong.
    """
    own, others = split(body, _FIELDS)
    if own["max_tokens"] is None:
        raise RequestError("max_tokens must be there: say how long the answer may be", "max_tokens")
    messages = [message for item in as_list(own["messages"], "messages") for message in _read(item)]
    if own["system"] is not None:
        system = {"role": "system", "content": text_of(own["system"], "system")}
        messages.insert(0, system)
    if not messages:
        raise RequestError("messages has no text: write a question", "messages")
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        others["prefix"] = messages.pop()["content"]
    tools, choice = own["tools"], as_object(own["tool_choice"], "tool_choice")
    thinking = as_object(own["thinking"], "thinking")
    form = as_object(
        as_object(own["output_config"], "output_config").get("format"), "output_config"
    )
    chat = {
        **others,
        "messages": messages,
        "max_tokens": own["max_tokens"],
        "stop": own["stop_sequences"] or None,
        "tools": [_tool(tool) for tool in tools] if isinstance(tools, list) else tools,
        "tool_choice": _choice(choice),
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
        "response_format": {
            "type": form.get("type"),
            "json_schema": {"name": "answer", "schema": form.get("schema")},
        }
        if form
        else None,
        **_thinking(thinking),
    }
    return chat_of(chat, served, _MessageTranslator(thinking))


def _thinking(thinking: Json) -> Json:
    """Return the field of a chat that says how long the model reasons."""
    kind = thinking.get("type")
    if kind not in (None, "enabled", "disabled", "adaptive"):
        raise RequestError("thinking.type must be enabled, disabled or adaptive", "thinking")
    if kind != "enabled":
        return {"reasoning_effort": "none"} if kind == "disabled" else {}
    if thinking.get("budget_tokens") is None:
        raise RequestError("thinking must have budget_tokens", "thinking")
    return {"thinking_budget": thinking["budget_tokens"]}


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
        return tool
    function = {name: tool.get(name) for name in ("name", "description")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _choice(choice: Json) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _CHOICES.get(kind, kind) if isinstance(kind, str) else kind


def _read(message: Json) -> Iterator[Json]:
    """Yield the messages of a chat that the blocks of one message are."""
    role, content = message.get("role"), message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if role not in ("user", "assistant") or not isinstance(blocks, list):
        raise RequestError("messages must have a role, user or assistant, and content", "messages")
    texts, calls, thoughts = [], [], ""
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            text = text_of(block.get("content") or "", "messages")
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
        elif kind == "thinking":
            thoughts += str(block.get("thinking") or "")
        elif kind != "redacted_thinking":
            texts.append(text_of([block], "messages"))
    if texts or calls:
        said: Json = {"role": role, "content": "".join(texts) or None}
        more = {"reasoning_content": thoughts or None, "tool_calls": calls or None}
        yield said | {name: value for name, value in more.items() if value is not None}


def describe_error(error: RequestError) -> Json:
    """Return an error as Anthropic's clients read it."""
    kind = error.body["error"]["type"].replace("server", "api")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


class _MessageTranslator(Translator):
    """The content blocks and events of one message."""

    params: ClassVar[Mapping[str, str]] = {
        **{"stop": "stop_sequences", "thinking_budget": "thinking", "reasoning_effort": "thinking"},
        "response_format": "output_config",
    }

    def __init__(self, thinking: Json) -> None:
        super().__init__()
        is_on = thinking.get("type") in ("enabled", "adaptive")
        self._shown = {TEXT, CALL} | ({REASONING} if is_on else set())

    def begin(self, chunk: Json, usage: Json) -> Iterator[Json]:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        counts = {"input_tokens": usage["prompt_tokens"] - cached, "output_tokens": 0}
        counts |= {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
        message = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
        ended = {"stop_reason": None, "stop_sequence": None}
        self.result = {**message, "model": chunk["model"], "content": [], **ended, "usage": counts}
        yield {"type": "message_start", "message": {**self.result, "content": []}}

    def open(self, kind: str, call: Json) -> Iterator[Json]:
        block: Json = {"type": "text", "text": ""}
        if kind == REASONING:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif kind == CALL:
            name = call["function"]["name"]
            block = {"type": "tool_use", "id": call["id"], "name": name, "input": {}}
            self._arguments = ""
        if kind in self._shown:
            self.result["content"].append(block)
            yield self._about("start", content_block=dict(block))

    def grow(self, kind: str, more: str, logprobs: list[Json]) -> Iterator[Json]:
        if kind == CALL:
            self._arguments += more
            yield self._about("delta", delta={"type": "input_json_delta", "partial_json": more})
        elif kind in self._shown:
            name = "text" if kind == TEXT else "thinking"
            self.result["content"][-1][name] += more
            yield self._about("delta", delta={"type": f"{name}_delta", name: more})

    def close(self, kind: str) -> Iterator[Json]:
        if kind == CALL:
            with contextlib.suppress(ValueError):  # they were cut off
                self.result["content"][-1]["input"] = json.loads(self._arguments)
        if kind in self._shown:
            yield self._about("stop")

    def end(self, choice: Json, usage: Json) -> Iterator[Json]:
        stop = choice["entropix"]["stop_string"]
        reason = "stop_sequence" if stop is not None else _REASONS[choice["finish_reason"]]
        ended = {"stop_reason": reason, "stop_sequence": stop}
        totals = {"output_tokens": usage["completion_tokens"]}
        self.result |= {**ended, "entropix": choice["entropix"]}
        self.result["usage"] |= totals
        yield {"type": "message_delta", "delta": ended, "usage": totals}
        yield {"type": "message_stop"}

    def failed(self, error: Json) -> Json:
        return {"type": "error", "error": {"type": "api_error", "message": error["message"]}}

    def _about(self, what: str, **fields: Any) -> Json:
        index = len(self.result["content"]) - 1
        return {"type": f"content_block_{what}", "index": index, **fields}
