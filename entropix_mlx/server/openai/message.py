"""The message of an answer in a chat: its reasoning, its text and its calls, with their
confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...constraints.fields import fields_of
from ...step import Step
from ...tools.reader import Addition, Call, CallReader, ReasoningReader

Json = dict[str, Any]
FORCED = -1e-3
"""The log probability, given what was allowed, above which a token was as good as forced."""


class ChatMessage:
    """What the assistant says and calls, as OpenAI sends it, whole or as it grows."""

    def __init__(
        self, reasoning: ReasoningReader | None = None, calls: CallReader | None = None
    ) -> None:
        """Begin a message, whose text may have reasoning before it and calls behind it."""
        self._reasoning_reader = reasoning
        self._call_reader = calls
        self._steps: list[Step] = []
        self._ends = [0]
        """Where the text of each step ends, without reasoning; before all of them, 0."""
        self._reasoning = self._text = ""
        self.reasoning_tokens = 0
        """Those between the tags."""

    @property
    def calls(self) -> list[Call]:
        return [] if self._call_reader is None else self._call_reader.calls

    def add(self, step: Step) -> Json:
        """Return the delta of a step."""
        reader = self._reasoning_reader
        reasoning, text = "", step.text
        if reader is not None:
            was_inside = reader.inside
            reasoning, text = reader.add(step.text)
            self.reasoning_tokens += was_inside and reader.inside
        if self._call_reader is None:
            return self._delta(reasoning, [Addition(text)])
        self._steps.append(step)
        self._ends.append(self._ends[-1] + len(text))
        return self._delta(reasoning, self._call_reader.add(text))

    def finish(self) -> Json:
        """Return the delta of what waited for more when the answer ended."""
        reader, calls = self._reasoning_reader, self._call_reader
        reasoning, text = ("", "") if reader is None else reader.finish()
        if calls is not None:
            return self._delta(reasoning, [*calls.add(text), *calls.finish()])
        return self._delta(reasoning, [Addition(text)] if text else [])

    def whole(self) -> Json:
        message: Json = {"role": "assistant", "content": self._text, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self.calls:
            calls = [_described(call) | _function(call, call.arguments) for call in self.calls]
            message |= {"content": self._text or None, "tool_calls": calls}
        return message

    def confidences(self) -> list[Json]:
        """Return how sure each call and each of its arguments is; see docs/server.md."""
        return [self._confidence(call) for call in self.calls]

    def _confidence(self, call: Call) -> Json:
        end = math.inf if call.end is None else call.end
        spans = zip(self._steps, pairwise(self._ends), strict=True)
        own = [step for step, (first, last) in spans if first < end and last > call.start]
        free = [step.allowed_logprob for step in own if step.allowed_logprob < FORCED]
        return {
            "id": call.id,
            "name": call.name,
            "confidence": math.exp(math.fsum(free) / len(free)) if free else 1.0,
            "fields": [field.to_dict() for field in fields_of(own, call.arguments)],
        }

    def _delta(self, reasoning: str, additions: Sequence[Addition]) -> Json:
        self._reasoning += reasoning
        delta: Json = {"reasoning_content": reasoning} if reasoning else {}
        changes: dict[int, Json] = {}
        for piece in additions:
            if piece.call is None:
                self._text += piece.text
                delta["content"] = delta.get("content", "") + piece.text
            elif not piece.text:
                call = self.calls[piece.call]
                changes[piece.call] = {"index": piece.call} | _described(call) | _function(call, "")
            else:
                known = {"index": piece.call, "function": {"arguments": ""}}
                changes.setdefault(piece.call, known)["function"]["arguments"] += piece.text
        if changes:
            delta["tool_calls"] = list(changes.values())
        return delta


def _described(call: Call) -> Json:
    return {"id": call.id, "type": "function"}


def _function(call: Call, arguments: str) -> Json:
    return {"function": {"name": call.name, "arguments": arguments}}
