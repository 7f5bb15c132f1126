"""Anthropic's /v1/messages: its content blocks are a chat's texts, calls and results."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from . import requests
from .errors import RequestError
from .protocols import CALL, REASONING, TEXT, PartsProtocol
from .requests import Json

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _messages(stated: Any) -> Any:
    """Return messages of blocks as the messages of a chat."""
    if not isinstance(stated, list):
        return stated
    return [part for message in stated for part in _parts(message)]


def _parts(message: Any) -> Iterator[Json]:
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
        raise ValueError("must have a role, user or assistant, and content")
    calls: list[Json] = []
    texts, thoughts, blocks = [], "", message.get("content")
    for block in blocks if isinstance(blocks, list) else [{"type": "text", "text": blocks}]:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            result = {"role": "tool", "tool_call_id": block.get("tool_use_id")}
            yield result | {"content": block.get("content") or ""}
        elif kind == "thinking":
            thoughts += str(block.get("thinking") or "")
        elif kind != "redacted_thinking":
            texts.append(block)
    if texts or calls:
        said = {"role": message["role"], "content": texts or None, "tool_calls": calls}
        yield said | {"reasoning_content": thoughts}


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
        return tool
    function = {name: tool.get(name) for name in ("name", "description")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _choice(choice: Any) -> Any:
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return "required" if kind == "any" else kind


class _ThinkingOptions(requests.Fields, extra="ignore"):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Any = None

    @model_validator(mode="after")
    def _check(self) -> _ThinkingOptions:
        if self.type == "enabled" and self.budget_tokens is None:
            raise ValueError("must have budget_tokens")
        return self


class MessagesRequest(requests.ChatRequest):
    """The body of /v1/messages."""

    messages: Annotated[requests.Messages, BeforeValidator(_messages)]
    system: requests.Content | None = None
    max_tokens: requests.MaxTokens
    stop: requests.StopTexts | None = Field(None, alias="stop_sequences")
    tools: list[Annotated[requests.Tool, BeforeValidator(_tool)]] = Field(
        [], max_length=requests.MOST_TOOLS
    )
    tool_choice: Annotated[requests.ToolChoice, BeforeValidator(_choice)] = "auto"
    response_format: Annotated[
        requests.Format, BeforeValidator(requests.nested), requests.member("format")
    ] = Field(None, alias="output_config")
    thinking: _ThinkingOptions | None = None
    n: Annotated[requests.Whole, Field(ge=1, le=1)] = 1

    @model_validator(mode="before")
    @classmethod
    def _with_chat_fields(cls, body: Json) -> Json:
        """Add the fields of chats that depend on parts of other fields."""
        choice, thinking = body.get("tool_choice"), body.get("thinking")
        added: Json = {}
        if isinstance(choice, dict) and choice.get("disable_parallel_tool_use"):
            added["parallel_tool_calls"] = False
        if isinstance(thinking, dict):
            added["thinking_budget"] = thinking.get("budget_tokens")
            added["reasoning_effort"] = "none" if thinking.get("type") == "disabled" else None
        return body | added

    @property
    def prompts(self) -> Sequence[requests.Prompt]:
        stated = self.messages[:-1] if self._continues else self.messages
        return [[*requests.system_message(self.system), *(message.shown() for message in stated)]]

    @property
    def beginning(self) -> str | list[int]:
        return self.messages[-1].content or "" if self._continues else self.prefix

    @property
    def _continues(self) -> bool:
        """Whether the last message is the beginning of the answer."""
        return self.messages[-1].role == "assistant" and not self.messages[-1].tool_calls


class MessagesProtocol(PartsProtocol):
    """The content blocks and events of one message."""

    request = MessagesRequest

    def __init__(self, body: Json) -> None:
        super().__init__(body)
        self._shown = {TEXT, CALL}
        thinking = body.get("thinking")
        if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive"):
            self._shown.add(REASONING)

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

    @classmethod
    def described(cls, error: RequestError) -> Json:
        kind = error.body["error"]["type"].replace("server", "api")
        return {"type": "error", "error": {"type": kind, "message": str(error)}}

    def _about(self, what: str, **fields: Any) -> Json:
        index = len(self.result["content"]) - 1
        return {"type": f"content_block_{what}", "index": index, **fields}
