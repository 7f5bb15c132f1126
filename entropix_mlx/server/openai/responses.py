"""Responses: steps in OpenAI's shapes, with the metrics beside them."""

from __future__ import annotations

import codecs
import re
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
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...engine.prompts import Likelihood

Json = dict[str, Any]
ListedToken = tuple[int, float | None, Sequence[tuple[int, float]], int]
"""A token's id, its log probability, the most probable tokens with theirs, and characters."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""What SentencePiece writes for a space."""


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
            if self.request.logprobs and not self.request.stream:
                self._steps.append(event.step)

    def chunk(self, event: Begun | Stepped) -> Json | None:
        """Return the choice of the streamed chunk of an event, if there is one."""
        if isinstance(event, Begun):
            if self.request.chat:
                return self._chunk({"role": "assistant", "content": ""})
            if not self.request.echo:
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
            choice["text"] = self.echoed + text if self.request.echo else text
            choice["prompt_logprobs"] = self.prompt_logprobs()
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

    def prompt_logprobs(self) -> list[Json | None] | None:
        """Return those of the prompt's tokens in vLLM's form: of each, itself comes first."""
        most = self.request.prompt_logprobs
        if most is None:
            return None
        found: list[Json | None] = [None]
        for token, score in zip(self.prompt[1:], self._scores, strict=True):
            own = {str(token): self._ranked(token, score.logprob, score.rank)}
            others = enumerate(score.listed[:most], 1)
            listed = {str(one): self._ranked(one, value, rank) for rank, (one, value) in others}
            found.append(own | listed)
        return found

    def _ranked(self, token: int, logprob: float, rank: int) -> Json:
        return {"logprob": logprob, "rank": rank, "decoded_token": self.tokens.text_of(token)}

    def _all_logprobs(self) -> Json:
        if not self.request.echo:
            return self._logprobs(self._steps)
        before, own = self._prompt_logprobs(), self._logprobs(self._steps)
        return {name: before[name] + own[name] for name in own}

    def _logprobs(self, steps: Iterable[Step]) -> Json:
        """Return log probabilities; the token that ends an answer has no text and is left out."""
        shown = [step for step in steps if step.text or step.finish_reason != "stop"]
        if self.request.chat:
            return {"content": [self._content(step) for step in shown], "refusal": None}
        most = self.request.top_logprobs
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
            else (token, score.logprob, score.listed[: self.request.top_logprobs], length)
            for token, score, length in zip(self.prompt, scores, lengths, strict=True)
        )
        self._offset = len(self.echoed)
        return found

    def _listed(self, entries: Iterable[ListedToken]) -> Json:
        found: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, logprob, best, length in entries:
            top: dict[str, float] | None = None
            if logprob is not None and self.request.top_logprobs:
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
        listed = step.top_logprobs[: self.request.top_logprobs]
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
        self._common = {
            **{"id": self.id, "created": int(time.time()), "model": served.name},
            "system_fingerprint": served.system_fingerprint,
        }

    def whole(self) -> Json:
        choices = [choice.whole() for choice in self.choices]
        frame = {"object": self._whole, **self._common}
        if self.request.chat:
            frame["prompt_logprobs"] = self.choices[0].prompt_logprobs()
        return frame | {"choices": choices, "usage": self.usage()}

    def chunk(self, choice: Json) -> Json:
        frame: Json = {"object": self._chunked, **self._common, "choices": [choice]}
        return frame | {"usage": None} if self.request.include_usage else frame

    def usage_chunk(self) -> Json:
        frame = {"object": self._chunked, **self._common}
        return frame | {"choices": [], "usage": self.usage()}

    def usage(self) -> Json:
        """Return how many tokens there were; those of a prompt count once for its answers."""
        firsts = self.choices[:: self.request.n]
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

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        state = decoder.__getstate__() if decoder is not None else b""
        self._by_character = _byte_characters() if b"ByteLevel" in bytes(state) else {}
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text; the name of one that is special."""
        if token not in self._known:
            self._known[token] = self._find(token)
        return self._known[token]

    def text_of(self, token: int) -> str:
        """Return the token's text; bytes that are no text are written as OpenAI writes them."""
        content = self.bytes_of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def _find(self, token: int) -> bytes:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:  # an id that the model has and the tokenizer has not
            return b""
        if token in self._special:
            return str(piece).encode()
        if byte := _BYTE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        if self._by_character and all(character in self._by_character for character in piece):
            return bytes(self._by_character[character] for character in piece)
        return str(piece).replace(_SPACE, " ").encode()


def _byte_characters() -> dict[str, int]:
    """Return the byte that each character stands for in a byte-level vocabulary, as GPT-2's."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    characters = {chr(byte): byte for byte in shown}
    return characters | {chr(256 + number): byte for number, byte in enumerate(hidden)}
