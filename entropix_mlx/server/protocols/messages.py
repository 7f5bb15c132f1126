"""Anthropic's /v1/messages: its content blocks are a chat's texts, calls and results."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from ...profiles.fields import shown
from ..model_info import ServedModel
from ..openai.errors import RequestError
from ..openai.fields import Json
from ..openai.requests import CompletionRequest
from .translator import CALL, REASONING, TEXT, Translator, as_object, chat_of, read_parts, split

PATH = "/v1/messages"

_FIELDS = (
    *("system", "messages", "max_tokens", "stop_sequences", "tools", "tool_choice", "metadata"),
    *("output_config", "output_format", "thinking"),
)
_UNSUPPORTED = (
    *("container", "mcp_servers", "context_management", "n", "response_format"),
    *("max_completion_tokens", "logprobs", "stream_options", "prompt_logprobs"),
    *("reasoning_effort", "thinking_budget"),
)
_PARAMS = {"stop": "stop_sequences", "thinking_budget": "thinking"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    **{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"},
    **{404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"},
    503: "overloaded_error",
}


def parse_messages(body: Json, served: ServedModel) -> CompletionRequest:
    """Return the chat that a request means.

    Raises:
        RequestError: a field is wrong.
    """
    own, others = split(body, _FIELDS, _UNSUPPORTED)
    if own["max_tokens"] is None:
        raise RequestError("max_tokens must be there: say how long the answer may be", "max_tokens")
    messages, prefix = _read_messages(own)
    tools, choice = own["tools"], as_object(own["tool_choice"], "tool_choice")
    thinking = as_object(own["thinking"], "thinking")
    chat = {
        **others,
        "messages": messages,
        "max_tokens": own["max_tokens"],
        "stop": own["stop_sequences"] or None,
        "tools": [_tool(tool) for tool in tools] if isinstance(tools, list) else tools,
        "tool_choice": _choice(choice),
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
        "response_format": _format(own),
        **_thinking(thinking),
    }
    if prefix is not None:
        chat["prefix"] = prefix
    shows = thinking.get("type") in ("enabled", "adaptive") and thinking.get("display") != "omitted"
    return chat_of(chat, served, _MessageTranslator(shows), _PARAMS)


def _thinking(thinking: Json) -> Json:
    """Return the fields of a chat that say how long the model reasons."""
    kind = thinking.get("type")
    if kind == "enabled":
        if thinking.get("budget_tokens") is None:
            raise RequestError("thinking must have budget_tokens", "thinking")
        return {"thinking_budget": thinking["budget_tokens"]}
    if kind not in (None, "disabled", "adaptive"):
        known = "enabled, disabled or adaptive"
        raise RequestError(f"thinking.type must be {known}, not {shown(kind)}", "thinking")
    return {"reasoning_effort": "none"} if kind == "disabled" else {}


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
        return tool
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": {**function, "description": tool.get("description")}}


def _choice(choice: Json) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _CHOICES.get(kind, kind) if isinstance(kind, str) else kind


def _format(own: Json) -> Any:
    form = as_object(own["output_config"], "output_config").get("format") or own["output_format"]
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema")}}


def _read_messages(own: Json) -> tuple[list[Json], str | None]:
    """Return the messages of a chat, and the beginning of its answer where one is given."""
    chat: list[Json] = []
    if own["system"] is not None:
        chat.append({"role": "system", "content": read_parts(own["system"], "system")})
    stated = own["messages"]
    if not isinstance(stated, list) or not stated:
        raise RequestError(f"messages must be a list of messages, not {shown(stated)}", "messages")
    for number, message in enumerate(stated):
        where = f"messages[{number}]"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise RequestError(f"{where}.role must be user or assistant", "messages")
        chat += _read_blocks(message["role"], message.get("content"), where)
    if not chat:
        raise RequestError("messages has no text: write a question", "messages")
    last = chat[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        return chat, None
    return chat[:-1], last["content"]


def _read_blocks(role: str, content: Any, where: str) -> Iterator[Json]:
    """Yield the messages of a chat that the blocks of one message are."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise RequestError(f"{where}.content must be a text or blocks", "messages")
    texts, calls, thoughts = [], [], []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            text = read_parts(block.get("content") or "", "messages")
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind != "redacted_thinking":
            texts.append(read_parts([block], "messages"))
    message = {"role": role, "content": "".join(texts) or None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        yield {**message, "tool_calls": calls}
    elif texts:
        yield message


def describe_error(error: RequestError) -> Json:
    """Return an error as Anthropic's clients read it."""
    described = {"type": _ERRORS.get(error.status, "api_error"), "message": str(error)}
    return {"type": "error", "error": described}


class _MessageTranslator(Translator):
    """The content blocks and events of one message."""

    def __init__(self, shows_thinking: bool = False) -> None:
        super().__init__()
        self._shows_thinking = shows_thinking
        self._arguments = ""

    def begin(self, chunk: Json, usage: Json) -> Iterator[Json]:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        counts = {"input_tokens": usage["prompt_tokens"] - cached, "output_tokens": 0}
        counts |= {"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}
        message = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
        ended = {"stop_reason": None, "stop_sequence": None}
        self.result = {**message, "model": chunk["model"], "content": [], **ended, "usage": counts}
        yield {"type": "message_start", "message": {**self.result, "content": []}}

    def open(self, kind: str, call: Json) -> Iterator[Json]:
        if kind == REASONING and not self._shows_thinking:
            return
        block: Json = {"type": "text", "text": ""}
        if kind == REASONING:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        if kind == CALL:
            self._arguments = ""
            name = call["function"]["name"]
            block = {"type": "tool_use", "id": call["id"], "name": name, "input": {}}
        self.result["content"].append(block)
        yield self._about("content_block_start", content_block=dict(block))

    def grow(self, kind: str, more: str, logprobs: list[Json]) -> Iterator[Json]:
        if kind == CALL:
            self._arguments += more
            delta = {"type": "input_json_delta", "partial_json": more}
            yield self._about("content_block_delta", delta=delta)
        elif kind == TEXT or self._shows_thinking:
            name = "text" if kind == TEXT else "thinking"
            self.result["content"][-1][name] += more
            delta = {"type": f"{name}_delta", name: more}
            yield self._about("content_block_delta", delta=delta)

    def close(self, kind: str) -> Iterator[Json]:
        if kind == CALL:
            self.result["content"][-1]["input"] = _read_arguments(self._arguments)
        if kind != REASONING or self._shows_thinking:
            yield self._about("content_block_stop")

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

    def _about(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "index": len(self.result["content"]) - 1, **fields}


def _read_arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # they were cut off
        return {}
