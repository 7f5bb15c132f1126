"""OpenAI's /v1/responses: the items of its input are a chat's messages, and so are its outputs."""

from __future__ import annotations

import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...profiles.fields import check_flag, check_text, shown
from ..model_info import ServedModel
from ..openai.body import Body, check_object
from ..openai.errors import RequestError
from ..openai.parse import CompletionRequest, parse_chat
from .translator import Json, Translator, check_absent, read_parts, read_tools

_FIELDS = (
    *("input", "instructions", "max_output_tokens", "text", "tools", "tool_choice", "store"),
    *("previous_response_id", "include", "top_logprobs", "stream_options"),
)
_WITHOUT_EFFECT = ("prompt_cache_retention", "prompt_cache_options", "context_management")
_UNSUPPORTED = (
    *("background", "conversation", "max_tool_calls", "moderation", "prompt", "truncation"),
    *("messages", "n", "max_tokens", "max_completion_tokens", "response_format", "logprobs"),
    *("reasoning_effort", "prompt_logprobs"),
)
_LOGPROBS = "message.output_text.logprobs"
_PARAMS = {"messages": "input", "max_completion_tokens": "max_output_tokens"}
_TEXTS = ("input_text", "output_text", "text")


class StoredResponses:
    """The latest responses, which others may continue; the oldest leave first."""

    def __init__(self, most: int, most_characters: int) -> None:
        self._most = most
        self._most_characters = most_characters
        self._characters = 0
        self._responses: OrderedDict[str, tuple[list[Json], Json, int]] = OrderedDict()

    def parse(self, body: Body, served: ServedModel) -> CompletionRequest:
        """Return the chat that a request means."""
        check_absent(body, _UNSUPPORTED)
        reasoning = Body(body.read("reasoning", check_object, {}))
        check_absent(reasoning, ("mode",))
        left_out = (*_FIELDS, *_UNSUPPORTED, *_WITHOUT_EFFECT, "reasoning")
        previous = body.read("previous_response_id", check_text)
        history = [*self._messages(previous), *self._read_input(body.get("input"))]
        include = body.read("include", _check_list, [])
        best = body.get("top_logprobs")
        chat = {
            **body.without(left_out),
            "messages": [*_instructions(body), *history],
            "max_completion_tokens": body.get("max_output_tokens"),
            "tools": read_tools(body, _nested),
            "tool_choice": _choice(body.get("tool_choice")),
            "response_format": _format(Body(body.read("text", check_object, {}))),
            "logprobs": True if best or _LOGPROBS in include else None,
            "top_logprobs": best,
            "reasoning_effort": reasoning.get("effort"),
        }
        try:
            request = parse_chat(Body(chat), served)
        except RequestError as error:
            error.param = _PARAMS.get(str(error.param), error.param)
            raise
        keep = self if body.read("store", check_flag, True) else None
        return replace(request, translator=_ResponseTranslator(body, history, keep))

    def get(self, name: str) -> Json:
        """Return a response that was stored.

        Raises:
            RequestError: there is none.
        """
        return self._stored(name, "id")[1]

    def put(self, messages: list[Json], response: Json) -> None:
        size = len(json.dumps([messages, response]))
        self._responses[response["id"]] = messages, response, size
        self._characters += size
        while len(self._responses) > self._most or self._characters > self._most_characters:
            *_, size = self._responses.popitem(last=False)[1]
            self._characters -= size

    def _messages(self, name: str | None) -> list[Json]:
        return [] if name is None else self._stored(name, "previous_response_id")[0]

    def _stored(self, name: str, field: str) -> tuple[list[Json], Json, int]:
        if name not in self._responses:
            message = f"there is no response {shown(name)} here any more: send the whole input"
            raise RequestError(message, field, status=404, code="not_found")
        return self._responses[name]

    def _item(self, name: Any) -> Json:
        for _, response, _ in reversed(self._responses.values()):
            for item in response["output"]:
                if item["id"] == name:
                    return dict(item)
        message = f"there is no item {shown(name)} here any more: send the item itself"
        raise RequestError(message, "input", status=404, code="not_found")

    def _read_input(self, given: Any) -> list[Json]:
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if not isinstance(items, list) or not items:
            raise RequestError(
                f"input must be a text or a list of items, not {shown(given)}", "input"
            )
        messages: list[Json] = []
        for number, item in enumerate(items):
            where = f"input[{number}]"
            if not isinstance(item, dict):
                raise RequestError(f"{where} must be an object, not {shown(item)}", "input")
            known = self._item(item.get("id")) if item.get("type") == "item_reference" else item
            _add_item(messages, known, where)
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


def _check_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list, not {shown(value)}")
    return value


def _instructions(body: Body) -> list[Json]:
    text = body.read("instructions", check_text)
    return [] if text is None else [{"role": "system", "content": text}]


def _nested(tool: Any) -> Any:
    """Return a tool as chats have it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _format(text: Body) -> Any:
    text.check_names(("format", "verbosity"))
    form = text.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        return {
            "type": "json_schema",
            "json_schema": {k: v for k, v in form.items() if k != "type"},
        }
    return form


class _ResponseTranslator(Translator):
    """The output items and events of one response."""

    def __init__(self, body: Body, history: list[Json], keep: StoredResponses | None) -> None:
        super().__init__()
        self._history = history
        self._keep = keep
        self._number = 0
        self._open: Json | None = None
        """The output item that grows."""
        self.result = {
            **{"id": _new_id("resp"), "object": "response", "created_at": int(time.time())},
            **{"status": "in_progress", "error": None, "incomplete_details": None},
            **{name: body.get(name) for name in ("instructions", "max_output_tokens", "model")},
            **{name: body.get(name) for name in ("previous_response_id", "temperature", "top_p")},
            **{"output": [], "usage": None, "store": keep is not None, "truncation": "disabled"},
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "reasoning": {"effort": (body.get("reasoning") or {}).get("effort"), "summary": None},
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "metadata": body.get("metadata") or {},
        }

    def events(self, chunk: Json, usage: Json) -> Iterator[Json]:
        if not self._number:
            self.result["model"] = chunk["model"]
            yield self._event("response.created", response=dict(self.result))
            yield self._event("response.in_progress", response=dict(self.result))
        for choice in chunk["choices"]:
            yield from self._grow(choice)
            if choice["finish_reason"] is not None:
                yield from self._close()
                yield self._end(choice, usage)

    def failed(self, error: Json) -> Json:
        named = {name: error.get(name) for name in ("code", "message", "param")}
        return self._event("error", **named)

    def _event(self, kind: str, **fields: Any) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _grow(self, choice: Json) -> Iterator[Json]:
        delta = choice["delta"]
        if text := delta.get("reasoning_content"):
            yield from self._write({"type": "reasoning", "summary": []}, text)
        if text := delta.get("content"):
            logprobs = (choice.get("logprobs") or {}).get("content", [])
            yield from self._write({"type": "message", "role": "assistant"}, text, logprobs)
        for call in delta.get("tool_calls") or ():
            if "id" in call:
                yield from self._close()
                function = {"name": call["function"]["name"], "arguments": ""}
                item = {"type": "function_call", "id": _new_id("fc"), "call_id": call["id"]}
                yield self._begin({**item, **function})
            if more := call["function"]["arguments"]:
                self.result["output"][-1]["arguments"] += more
                yield self._about("response.function_call_arguments.delta", delta=more)

    def _write(self, item: Json, text: str, logprobs: list[Json] | None = None) -> Iterator[Json]:
        """Let a text join the open item if it is of the kind of an item, or else that one."""
        if self._open is None or self._open["type"] != item["type"]:
            yield from self._close()
            yield self._begin({**item, "id": _new_id(item["type"]), "content": []})
            part: Json = {"type": "reasoning_text", "text": ""}
            if logprobs is not None:
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self.result["output"][-1]["content"].append(part)
            yield self._about("response.content_part.added", part=_copied(part))
        part = self.result["output"][-1]["content"][0]
        part["text"] += text
        more = {}
        if logprobs is not None:
            part["logprobs"] += logprobs
            more = {"logprobs": logprobs}
        yield self._about(f"response.{part['type']}.delta", delta=text, **more)

    def _begin(self, item: Json) -> Json:
        self._open = {**item, "status": "in_progress"}
        self.result["output"].append(self._open)
        index = len(self.result["output"]) - 1
        added = _copied(self._open)
        return self._event("response.output_item.added", output_index=index, item=added)

    def _about(self, kind: str, **fields: Any) -> Json:
        """Return an event about the last item; a text in it is the part of index 0."""
        last = self.result["output"][-1]
        place = {"item_id": last["id"], "output_index": len(self.result["output"]) - 1}
        if "content" in last:
            place["content_index"] = 0
        return self._event(kind, **place, **fields)

    def _close(self) -> Iterator[Json]:
        item, self._open = self._open, None
        if item is None:
            return
        if "content" in item:
            [part] = item["content"]
            done = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._about(f"response.{part['type']}.done", **done)
            yield self._about("response.content_part.done", part=part)
        else:
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._about("response.function_call_arguments.done", **done)
        item["status"] = "completed"
        index = len(self.result["output"]) - 1
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _end(self, choice: Json, usage: Json) -> Json:
        cut = choice["finish_reason"] == "length"
        status = "incomplete" if cut else "completed"
        self.result |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "entropix": choice["entropix"],
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            },
        }
        if self._keep is not None:
            messages = list(self._history)
            for item in self.result["output"]:
                _add_item(messages, item, "output")
            self._keep.put(messages, self.result)
        return self._event(f"response.{status}", response=self.result)


def _copied(item: Json) -> Json:
    copied: Json = json.loads(json.dumps(item))
    return copied


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
