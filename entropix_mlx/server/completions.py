"""Answers in the shapes of chats and completions, with the metrics beside them."""

from __future__ import annotations

import codecs
import contextlib
import math
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from ..constraints.fields import fields_of
from ..profiles.sections import Abstain
from ..step import Step
from ..summary import Summary
from ..tools.reader import Addition, Call, CallReader, ReasoningReader
from .engine import ServedAnswer
from .requests import AnswerRequest, Json

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from mlx_lm.tokenizer_utils import TokenizerWrapper

TOTALS = ("confidence", "scores", "insertions", "forks", "roll_backs", "stopped")
"""Those of `Summary` that are sent as they are."""
FORCED = -1e-3
"""The log probability, among the allowed tokens, above which a token counts as forced."""
ListedToken = tuple[int, float | None, Sequence[tuple[int, float]], int]
"""A token's id, its log probability, the most probable tokens with theirs, and characters."""


class AssistantText:
    """An answer's reasoning, text and calls, as they grow."""

    def __init__(
        self, reasoning: ReasoningReader | None = None, calls: CallReader | None = None
    ) -> None:
        self._reasoning_reader = reasoning
        self._call_reader = calls
        self._steps: list[Step] = []
        self._ends = [0]
        """Where the text of each step ends, without reasoning; before all of them, 0."""
        self._reasoning = ""
        self.text = ""
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
        """Return the delta of the text that was held back when the answer ended."""
        reader, calls = self._reasoning_reader, self._call_reader
        reasoning, text = ("", "") if reader is None else reader.finish()
        if calls is not None:
            return self._delta(reasoning, [*calls.add(text), *calls.finish()])
        return self._delta(reasoning, [Addition(text)] if text else [])

    def message(self) -> Json:
        """Return the whole message of a chat."""
        message: Json = {"role": "assistant", "content": self.text, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self.calls:
            calls = [_call(call, call.arguments) for call in self.calls]
            message |= {"content": self.text or None, "tool_calls": calls}
        return message

    def confidences(self) -> list[Json] | None:
        """Return how sure each call and its arguments are; None where there are no tools."""
        return None if self._call_reader is None else [*map(self._confidence, self.calls)]

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
                self.text += piece.text
                delta["content"] = delta.get("content", "") + piece.text
            elif not piece.text:
                changes[piece.call] = {"index": piece.call} | _call(self.calls[piece.call], "")
            else:
                known = {"index": piece.call, "function": {"arguments": ""}}
                changes.setdefault(piece.call, known)["function"]["arguments"] += piece.text
        if changes:
            delta["tool_calls"] = list(changes.values())
        return delta


def _call(call: Call, arguments: str) -> Json:
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


@dataclass(eq=False, kw_only=True)
class Choice(ServedAnswer):
    """One answer of a response so far."""

    index: int
    request: AnswerRequest
    tokens: TokenText
    rule: Abstain
    """Calls answers unsure."""
    written: AssistantText
    echoed: str = ""
    """The prompt's text, where the answer repeats it."""
    summary: Summary = field(default_factory=Summary)
    _steps: list[Step] = field(default_factory=list)
    _begun: bool = False
    """Whether its first chunk was sent."""
    _offset: int = 0

    def add(self, step: Step) -> Json:
        """Return what a step adds to the message."""
        self.summary.add(step)
        self._steps.append(step)
        return self.written.add(step)

    def chunks(self, step: Step | None) -> Iterator[Json]:
        """Yield the choice of each chunk that a step is streamed as; None is the end."""
        if not self._begun:
            self._begun = True
            if self.request.is_chat:
                yield self._chunk({"role": "assistant", "content": ""})
            elif self.request.echoes:
                yield self._chunk({"content": self.echoed}, self._prompt_logprobs())
        if step is None:
            end = {"finish_reason": self._finish_reason, "entropix": self._totals()}
            yield self._chunk(self.written.finish()) | end
        else:
            delta = self.add(step)
            yield self._chunk(delta, self._logprobs([step])) | {"entropix": step.to_dict()}

    def whole(self) -> Json:
        self.written.finish()
        choice: Json = {"index": self.index, "finish_reason": self._finish_reason}
        if self.request.is_chat:
            choice |= {"message": self.written.message(), "logprobs": self._logprobs(self._steps)}
        else:
            before, after = self._prompt_logprobs(), self._logprobs(self._steps)
            if before is not None and after is not None:
                after = {name: before[name] + after[name] for name in after}
            choice |= {"text": self.echoed + self.written.text, "logprobs": after}
        return choice | {"entropix": self._totals()}

    def _chunk(self, delta: Json, logprobs: Json | None = None) -> Json:
        said = {"delta": delta} if self.request.is_chat else {"text": delta.get("content", "")}
        return {"index": self.index, **said, "logprobs": logprobs, "finish_reason": None}

    @property
    def _finish_reason(self) -> str:
        reason = self.summary.finish_reason or "length"
        return "tool_calls" if self.written.calls and reason == "stop" else reason

    def _totals(self) -> Json:
        summary = self.summary
        totals: Json = {}
        if (calls := self.written.confidences()) is not None:
            totals["tool_calls"] = calls
        if strains := summary.strains:
            totals["strain"] = {"mean": fmean(strains), "largest": max(strains)}
        if self.request.constrained_by is not None:
            totals["fields"] = [one.to_dict() for one in summary.fields]
        if self.selection is not None:
            totals["answers"] = self.selection
        verdict = self.rule.verdict(summary.metrics)
        return totals | {
            **{name: getattr(summary, name) for name in TOTALS},
            "certainty": None if verdict is None else verdict.to_dict(),
            "strategies": {str(name): count for name, count in summary.strategies.items()},
            "seed": self.settings.seed,
            "stop_string": self._stop_string,
        }

    @property
    def _stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        stops = self.settings.stop if self.summary.finish_reason == "stop" else ()
        last = self._steps[-1 - max(map(len, stops), default=0) :]
        tail = b"".join(self.tokens.bytes_of(step.token) for step in last)
        return next((stop for stop in stops if stop in tail.decode("utf-8", "replace")), None)

    def _logprobs(self, steps: Iterable[Step]) -> Json | None:
        """Return log probabilities; the token that ends an answer has no text and is left out."""
        most = self.request.listed
        if most is None:
            return None
        steps = [step for step in steps if step.text or step.finish_reason != "stop"]
        alternatives = [[(t.token, t.logprob) for t in step.top_logprobs[:most]] for step in steps]
        pairs = zip(steps, alternatives, strict=True)
        if not self.request.is_chat:
            return self._listed((s.token, s.logprob, best, len(s.text)) for s, best in pairs)
        content = [
            self._token(step.token, step.logprob)
            | {"top_logprobs": [self._token(*alternative) for alternative in best]}
            for step, best in pairs
        ]
        return {"content": content, "refusal": None}

    def _prompt_logprobs(self) -> Json | None:
        """Return the log probabilities of an echoed prompt's tokens; the first has none."""
        most = self.request.listed
        if most is None or not self.request.echoes:
            return None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        lengths = [len(decoder.decode(self.tokens.bytes_of(token))) for token in self.prompt]
        scores = [None, *((score.logprob, score.listed[:most]) for score in self.likelihoods)]
        listed = self._listed(
            (token, *(score or (None, ())), length)
            for token, score, length in zip(self.prompt, scores, lengths, strict=True)
        )
        self._offset = len(self.echoed)
        return listed

    def _listed(self, entries: Iterable[ListedToken]) -> Json:
        """Return log probabilities in the shape of completions."""
        listed: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, logprob, alternatives, length in entries:
            top: dict[str, float] | None = None
            if logprob is not None and self.request.listed:
                top = {}
                for other, value in (*alternatives, (token, logprob)):
                    top.setdefault(self.tokens.text_of(other), value)
            listed["tokens"].append(self.tokens.text_of(token))
            listed["token_logprobs"].append(logprob)
            listed["top_logprobs"].append(top)
            listed["text_offset"].append(self._offset)
            self._offset += length
        return listed

    def _token(self, token: int, logprob: float) -> Json:
        content = self.tokens.bytes_of(token)
        text = content.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(content)}


class CompletionResponse:
    """The choices of one request, and the frame around them."""

    def __init__(self, request: AnswerRequest, choices: Sequence[Choice], model: str) -> None:
        self.choices = choices
        self.request = request
        self._kind = "chat.completion" if request.is_chat else "text_completion"
        prefix = "chatcmpl" if request.is_chat else "cmpl"
        identity = f"{prefix}-{uuid.uuid4().hex}"
        self._frame = {"id": identity, "created": int(time.time()), "model": model}

    def whole(self) -> Json:
        choices = [choice.whole() for choice in self.choices]
        return {"object": self._kind, **self._frame, "choices": choices, "usage": self.usage()}

    def chunks(self, choice: Choice, step: Step | None) -> Iterator[Json]:
        """Yield the chunks that a step is streamed as; None is the end of its answer."""
        for chunk in choice.chunks(step):
            yield self._chunk([chunk], None)

    def usage_chunk(self) -> Json:
        return self._chunk([], self.usage())

    def _chunk(self, choices: list[Json], usage: Json | None) -> Json:
        kind = f"{self._kind}.chunk" if self.request.is_chat else self._kind
        chunk = {"object": kind, **self._frame, "choices": choices}
        return chunk | {"usage": usage} if self.request.include_usage else chunk

    def usage(self) -> Json:
        """Return how many tokens there were; those of a prompt count once for its answers."""
        firsts = self.choices[:: self.request.n]
        prompt = sum(len(choice.prompt) for choice in firsts)
        completion = sum(choice.summary.completion_tokens for choice in self.choices)
        reasoning = sum(choice.written.reasoning_tokens for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
            "prompt_tokens_details": {"cached_tokens": sum(choice.cached for choice in firsts)},
        }


class TokenText:
    """The bytes of each token of a vocabulary, which OpenAI's log probabilities list."""

    def __init__(self, tokenizer: TokenizerWrapper, vocab: int) -> None:
        from llguidance.hf import from_tokenizer

        self._tokenizer = tokenizer
        self._pieces: LLTokenizer | None = None
        with contextlib.suppress(ValueError, AttributeError, TypeError):  # no tokenizer.json
            self._pieces = from_tokenizer(tokenizer._tokenizer, n_vocab=vocab)

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text; the name of one that is special."""
        if self._pieces is None:
            return str(self._tokenizer.decode([token])).encode()
        return bytes(self._pieces.decode_bytes([token]))

    def text_of(self, token: int) -> str:
        """Return the token's text; bytes that are no text are written as OpenAI writes them."""
        content = self.bytes_of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
