"""Responses: steps in OpenAI's shapes, with the metrics beside them."""

from __future__ import annotations

import codecs
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ...profiles.sections import Abstain
from ...settings import Settings
from ...step import Step
from ...summary import Summary
from ..engine import Begun, Ended, Stepped
from ..model_info import ServedModel
from .message import ChatMessage
from .requests import CompletionRequest

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...engine.prompts import Likelihood

Json = dict[str, Any]
ListedToken = tuple[int, float | None, Sequence[tuple[int, float]], int]
"""A token's id, its log probability, the most probable tokens with theirs, and characters."""


@dataclass
class Choice:
    """One answer of a response so far."""

    index: int
    """Of the choice in the response."""
    prompt: Sequence[int]
    settings: Settings
    """Of this answer, with its own seed."""
    request: CompletionRequest
    tokens: TokenText
    rule: Abstain
    """Calls answers unsure."""
    echoed: str = ""
    """The prompt's text, where the answer repeats it."""
    cached: int = 0
    """Tokens of the prompt that were in the cache."""
    summary: Summary = field(default_factory=Summary)
    message: ChatMessage = field(default_factory=ChatMessage)
    """What a chat shows of the answer."""
    _delta: Json = field(default_factory=dict)
    """What the last step added to the message."""
    _scores: Sequence[Likelihood] = ()
    _steps: list[Step] = field(default_factory=list)
    _several: Json | None = None
    _offset: int = 0
    _last_tokens: deque[int] = field(init=False)

    def __post_init__(self) -> None:
        self._last_tokens = deque(maxlen=max(map(len, self.settings.stop), default=0) + 1)

    def add(self, event: Begun | Stepped | Ended) -> None:
        if isinstance(event, Begun):
            self.cached, self._scores = event.cached, event.scores
        elif isinstance(event, Ended):
            self._several = event.several
        else:
            self.summary.add(event.step)
            self._last_tokens.append(event.step.token)
            if self.request.chat:
                self._delta = self.message.add(event.step)
            if self.request.logprobs and not self.request.stated.stream:
                self._steps.append(event.step)

    def chunk(self, event: Begun | Stepped) -> Json | None:
        """Return the choice of the streamed chunk of an event, if there is one."""
        if isinstance(event, Begun):
            if self.request.chat:
                return self._chunk({"role": "assistant", "content": ""})
            if not self.request.stated.repeats_prompt:
                return None
            return self._chunk(
                self.echoed, self._prompt_logprobs() if self.request.logprobs else None
            )
        step = event.step
        logprobs = self._logprobs([step]) if self.request.logprobs else None
        content: Any = self._delta if self.request.chat else step.text
        return self._chunk(content, logprobs) | {"entropix": step.to_dict()}

    def last_chunk(self) -> Json:
        chunk = self._chunk(self.message.finish() if self.request.chat else "")
        return chunk | {"finish_reason": self._finish_reason, "entropix": self._totals()}

    def whole(self) -> Json:
        text = self.summary.text
        self.message.finish()
        choice: Json = {"index": self.index, "finish_reason": self._finish_reason}
        if self.request.chat:
            choice["message"] = self.message.whole()
        else:
            choice["text"] = self.echoed + text if self.request.stated.repeats_prompt else text
        choice["logprobs"] = self._all_logprobs() if self.request.logprobs else None
        return choice | {"entropix": self._totals()}

    def _chunk(self, content: Any, logprobs: Json | None = None) -> Json:
        name = "delta" if self.request.chat else "text"
        return {"index": self.index, name: content, "logprobs": logprobs, "finish_reason": None}

    @property
    def _finish_reason(self) -> str:
        reason = self.summary.finish_reason or "length"
        return "tool_calls" if self.message.calls and reason == "stop" else reason

    def _totals(self) -> Json:
        summary = self.summary
        strategies = {str(name): count for name, count in summary.strategies.items()}
        verdict = self.rule.verdict(summary.metrics)
        found: Json = {}
        if self.request.tools is not None:
            found["tool_calls"] = self.message.confidences()
        if strains := summary.strains:
            found["strain"] = {"mean": fmean(strains), "largest": max(strains)}
        if self.request.constrained_by is not None:
            found["fields"] = [one.to_dict() for one in summary.fields]
        if self._several is not None:
            found["answers"] = self._several
        return found | {
            "confidence": summary.confidence,
            "certainty": None if verdict is None else verdict.to_dict(),
            "scores": summary.scores,
            "strategies": strategies,
            "insertions": summary.insertions,
            "forks": summary.forks,
            "roll_backs": summary.roll_backs,
            "seed": self.settings.seed,
            "stop_string": self._stop_string,
            "stopped": summary.stopped,
        }

    @property
    def _stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        if self.summary.finish_reason != "stop":
            return None
        tail = b"".join(map(self.tokens.bytes_of, self._last_tokens)).decode("utf-8", "replace")
        return next((stop for stop in self.settings.stop if stop in tail), None)

    def _all_logprobs(self) -> Json:
        if not self.request.stated.repeats_prompt:
            return self._logprobs(self._steps)
        before, own = self._prompt_logprobs(), self._logprobs(self._steps)
        return {name: before[name] + own[name] for name in own}

    def _logprobs(self, steps: Iterable[Step]) -> Json:
        """Return log probabilities; the token that ends an answer has no text and is left out."""
        shown = [step for step in steps if step.text or step.finish_reason != "stop"]
        if self.request.chat:
            return {"content": [self._content(step) for step in shown], "refusal": None}
        most = self.settings.top_logprobs
        best = [[(one.token, one.logprob) for one in step.top_logprobs[:most]] for step in shown]
        return self._listed(
            (step.token, step.logprob, listed, len(step.text))
            for step, listed in zip(shown, best, strict=True)
        )

    def _prompt_logprobs(self) -> Json:
        """Return the log probabilities of the prompt's tokens; the first has none."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        lengths = [len(decoder.decode(self.tokens.bytes_of(token))) for token in self.prompt]
        scores: list[Likelihood | None] = [None, *self._scores]
        found = self._listed(
            (token, None, (), length)
            if score is None
            else (token, score.logprob, score.listed[: self.settings.top_logprobs], length)
            for token, score, length in zip(self.prompt, scores, lengths, strict=True)
        )
        self._offset = len(self.echoed)
        return found

    def _listed(self, entries: Iterable[ListedToken]) -> Json:
        found: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, logprob, best, length in entries:
            top: dict[str, float] | None = None
            if logprob is not None and self.settings.top_logprobs:
                top = {}
                for other, value in (*best, (token, logprob)):
                    top.setdefault(self.tokens.text_of(other), value)
            found["tokens"].append(self.tokens.text_of(token))
            found["token_logprobs"].append(logprob)
            found["top_logprobs"].append(top)
            found["text_offset"].append(self._offset)
            self._offset += length
        return found

    def _content(self, step: Step) -> Json:
        listed = step.top_logprobs[: self.settings.top_logprobs]
        best = [self._token(one.token, one.logprob) for one in listed]
        return self._token(step.token, step.logprob) | {"top_logprobs": best}

    def _token(self, token: int, logprob: float) -> Json:
        content = self.tokens.bytes_of(token)
        text = content.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(content)}


class CompletionResponse:
    """The choices of one request, and the frame around them."""

    def __init__(
        self, request: CompletionRequest, choices: Sequence[Choice], served: ServedModel
    ) -> None:
        self.request = request
        self.choices = choices
        kind = "chat.completion" if request.chat else "text_completion"
        self._whole, self._chunked = kind, f"{kind}.chunk" if request.chat else kind
        self.id = f"{'chatcmpl' if request.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._common = {"id": self.id, "created": int(time.time()), "model": served.name}

    def whole(self) -> Json:
        choices = [choice.whole() for choice in self.choices]
        frame = {"object": self._whole, **self._common}
        return frame | {"choices": choices, "usage": self.usage()}

    def chunk(self, choice: Json) -> Json:
        frame: Json = {"object": self._chunked, **self._common, "choices": [choice]}
        return frame | {"usage": None} if self.request.include_usage else frame

    def usage_chunk(self) -> Json:
        frame = {"object": self._chunked, **self._common}
        return frame | {"choices": [], "usage": self.usage()}

    def usage(self) -> Json:
        """Return how many tokens there were; those of a prompt count once for its answers."""
        firsts = self.choices[:: self.request.stated.n]
        prompt = sum(len(choice.prompt) for choice in firsts)
        completion = sum(choice.summary.completion_tokens for choice in self.choices)
        reasoning = sum(choice.message.reasoning_tokens for choice in self.choices)
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
