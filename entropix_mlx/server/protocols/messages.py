"""Anthropic's /v1/messages: its content blocks are a chat's texts, calls and results."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...profiles.fields import shown
from ..model_info import ServedModel
from ..openai.body import Body, check_object
from ..openai.errors import RequestError
from ..openai.parse import CompletionRequest, parse_chat
from ..openai.sampling import TOKENS
from ..openai.template import NO_EFFORT
from .translator import Json, Translator, check_absent, read_parts, read_tools

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
ENABLED, DISABLED, ADAPTIVE = "enabled", "disabled", "adaptive"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    **{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"},
    **{404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"},
    503: "overloaded_error",
}


def parse_messages(body: Body, served: ServedModel) -> CompletionRequest:
    """Return the chat that a request means."""
    if "max_tokens" not in body:
        raise RequestError("max_tokens must be there: say how long the answer may be", "max_tokens")
    return _parse(body, served, body.get("max_tokens"))


def parse_counted(body: Body, served: ServedModel) -> CompletionRequest:
    """Return the chat whose prompt's tokens shall be counted."""
    return _parse(body, served, 1)


def _parse(body: Body, served: ServedModel, most: Any) -> CompletionRequest:
    check_absent(body, _UNSUPPORTED)
    messages, prefix = _read_messages(body)
    choice = Body(body.read("tool_choice", check_object, {}))
    thinking = Body(body.read("thinking", check_object, {}))
    chat = {
        **body.without((*_FIELDS, *_UNSUPPORTED)),
        "messages": messages,
        "prefix": body.get("prefix") if prefix is None else prefix,
        "max_tokens": most,
        "stop": body.get("stop_sequences") or None,
        "tools": read_tools(body, _tool),
        "tool_choice": _choice(choice),
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
        "response_format": _format(body),
        **_thinking(thinking),
    }
    shows = thinking.get("type") in (ENABLED, ADAPTIVE) and thinking.get("display") != "omitted"
    return replace(parse_chat(Body(chat), served), translator=_MessageTranslator(shows))


def _thinking(thinking: Body) -> Json:
    """Return the fields of a chat that say how long the model reasons."""
    thinking.check_names(("type", "budget_tokens", "display"))
    kind = thinking.get("type")
    if kind == ENABLED:
        return {"thinking_budget": thinking.require("budget_tokens", TOKENS)}
    if kind not in (None, DISABLED, ADAPTIVE):
        known = f"{ENABLED}, {DISABLED} or {ADAPTIVE}"
        raise RequestError(f"thinking.type must be {known}, not {shown(kind)}", "thinking")
    return {"reasoning_effort": NO_EFFORT} if kind == DISABLED else {}


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
        return tool
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": {**function, "description": tool.get("description")}}


def _choice(choice: Body) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _CHOICES.get(kind, kind) if isinstance(kind, str) else kind


def _format(body: Body) -> Any:
    config = Body(body.read("output_config", check_object, {}))
    config.check_names(("format",))
    form = config.get("format") or body.get("output_format")
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema")}}


def _read_messages(body: Body) -> tuple[list[Json], str | None]:
    """Return the messages of a chat, and the beginning of its answer where one is given."""
    found: list[Json] = []
    if "system" in body:
        found.append({"role": "system", "content": read_parts(body.get("system"), "system")})
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise RequestError(f"messages must be a list of messages, not {shown(given)}", "messages")
    for number, message in enumerate(given):
        where = f"messages[{number}]"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            raise RequestError(f"{where}.role must be user or assistant", "messages")
        found += _read_blocks(message["role"], message.get("content"), where)
    if not found:
        raise RequestError("messages has no text: write a question", "messages")
    last = found[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        return found, None
    return found[:-1], last["content"]


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
        self._blocks: list[Json] = []
        self._arguments = ""
        self._open = False

    def events(self, chunk: Json, usage: Json) -> Iterator[Json]:
        if not self.result:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            counts = {
                **{"input_tokens": usage["prompt_tokens"] - cached, "output_tokens": 0},
                **{"cache_read_input_tokens": cached, "cache_creation_input_tokens": 0},
            }
            self.result = {
                **{"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"},
                **{"model": chunk["model"], "content": [], "stop_reason": None},
                **{"stop_sequence": None, "usage": counts},
            }
            yield {"type": "message_start", "message": dict(self.result)}
        for choice in chunk["choices"]:
            yield from self._grow(choice["delta"])
            if choice["finish_reason"] is not None:
                yield from self._close()
                yield from self._end(choice, usage)

    def failed(self, error: Json) -> Json:
        return {"type": "error", "error": {"type": "api_error", "message": error["message"]}}

    def _grow(self, delta: Json) -> Iterator[Json]:
        if (text := delta.get("reasoning_content")) and self._shows_thinking:
            yield from self._write(text, "thinking", {"type": "thinking", "signature": ""})
        if text := delta.get("content"):
            yield from self._write(text, "text", {"type": "text"})
        for call in delta.get("tool_calls") or ():
            function = call["function"]
            if "id" in call:
                yield from self._close()
                use = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}}
                yield self._begin(use)
            if function["arguments"]:
                self._arguments += function["arguments"]
                more = {"type": "input_json_delta", "partial_json": function["arguments"]}
                yield self._delta(more)

    def _write(self, text: str, kind: str, block: Json) -> Iterator[Json]:
        """Let a text join the open block if it is of a kind, or else begin a block."""
        if not self._open or self._blocks[-1]["type"] != kind:
            yield from self._close()
            yield self._begin({**block, kind: ""})
        self._blocks[-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _begin(self, block: Json) -> Json:
        self._open, self._arguments = True, ""
        self._blocks.append(block)
        index = len(self._blocks) - 1
        return {"type": "content_block_start", "index": index, "content_block": dict(block)}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> Iterator[Json]:
        if self._open:
            if self._blocks[-1]["type"] == "tool_use":
                self._blocks[-1]["input"] = _read_arguments(self._arguments)
            yield {"type": "content_block_stop", "index": len(self._blocks) - 1}
        self._open = False

    def _end(self, choice: Json, usage: Json) -> Iterator[Json]:
        stop = choice["entropix"]["stop_string"]
        reason = "stop_sequence" if stop is not None else _REASONS[choice["finish_reason"]]
        ended = {"stop_reason": reason, "stop_sequence": stop}
        self.result |= {**ended, "content": self._blocks, "entropix": choice["entropix"]}
        self.result["usage"]["output_tokens"] = usage["completion_tokens"]
        totals = {"output_tokens": usage["completion_tokens"]}
        yield {"type": "message_delta", "delta": ended, "usage": totals}
        yield {"type": "message_stop"}


def _read_arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # they were cut off
        return {}
