"""What is sent back: steps in OpenAI's shapes, with what was measured beside them."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from ...answer.position import Likelihood
from ...step import Step
from ...summary import Summary
from ..events import Begun, Came, Item
from .parse import Asked
from .token_text import TokenText

Json = dict[str, Any]


class Choice:
    """One answer of a response, as far as it has come."""

    def __init__(self, item: Item, asked: Asked, prompt: str, tokens: TokenText) -> None:
        """Begin an answer.

        Args:
            item: the order's.
            asked: what the request asks for.
            prompt: the prompt's text, which `echo` repeats.
            tokens: what each token stands for.
        """
        self.index = item.index
        self.cached = 0
        self._item = item
        self._asked = asked
        self._prompt = prompt
        self._tokens = tokens
        self._scores: Sequence[Likelihood] = ()
        self._steps: list[Step] = []
        self._summary = Summary()
        self._offset = 0

    def note(self, event: Begun | Came) -> None:
        """Count what happened."""
        if isinstance(event, Begun):
            self.cached, self._scores = event.cached, event.scores
        else:
            self._summary.add(event.step)
            if self._asked.logprobs and not self._asked.stream:
                self._steps.append(event.step)

    def chunk(self, event: Begun | Came) -> Json | None:
        """Return the choice of a streamed chunk that tells what happened, or None."""
        if isinstance(event, Begun):
            if self._asked.chat:
                return self._chunk({"role": "assistant", "content": ""})
            return self._chunk(self._prompt, self._echoed()) if self._asked.echo else None
        step = event.step
        logprobs = self._logprobs([step]) if self._asked.logprobs else None
        content: Any = {"content": step.text} if self._asked.chat else step.text
        return self._chunk(content, logprobs) | {"entropix": step.to_dict()}

    @property
    def finish_reason(self) -> str:
        """Why the answer ended."""
        return self._summary.finish_reason or "length"

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer."""
        return self._summary.completion_tokens

    def last_chunk(self) -> Json:
        """Return the choice of the chunk that ends a streamed answer."""
        chunk = self._chunk({} if self._asked.chat else "")
        return chunk | {"finish_reason": self.finish_reason, "entropix": self._totals()}

    def whole(self) -> Json:
        """Return the choice of a response that comes in one piece."""
        text = self._summary.text
        choice: Json = {"index": self.index, "finish_reason": self.finish_reason}
        if self._asked.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = self._prompt + text if self._asked.echo else text
        choice["logprobs"] = self._all_logprobs() if self._asked.logprobs else None
        return choice | {"entropix": self._totals()}

    def _chunk(self, content: Any, logprobs: Json | None = None) -> Json:
        name = "delta" if self._asked.chat else "text"
        return {"index": self.index, name: content, "logprobs": logprobs, "finish_reason": None}

    def _totals(self) -> Json:
        """Return what the steps amount to."""
        summary = self._summary
        strategies = {str(name): count for name, count in summary.strategies.items()}
        verdict = self._item.settings.verdict(summary.metrics)
        return {
            "confidence": summary.confidence,
            "certainty": None if verdict is None else verdict.to_dict(),
            "mean_entropy": summary.mean_entropy,
            "mean_varentropy": summary.mean_varentropy,
            "strategies": strategies,
            "insertions": summary.insertions,
            "forks": summary.forks,
            "dropped": summary.dropped,
            "roll_backs": summary.roll_backs,
            "seed": self._item.settings.seed,
        }

    def _all_logprobs(self) -> Json:
        logprobs = self._echoed() if self._asked.echo else None
        own = self._logprobs(self._steps)
        if logprobs is None:
            return own
        return {name: logprobs[name] + own[name] for name in own}

    def _logprobs(self, steps: Iterable[Step]) -> Json:
        """Return log probabilities; the token that ends an answer has no text and is left out."""
        shown = [step for step in steps if step.text or step.finish_reason != "stop"]
        if self._asked.chat:
            return {"content": [self._content(step) for step in shown], "refusal": None}
        found: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for step in shown:
            best = [(one.token, one.logprob) for one in step.top_logprobs]
            self._append(found, step.token, step.logprob, best, len(step.text))
        return found

    def _echoed(self) -> Json | None:
        """Return the log probabilities of the prompt's tokens; the first has none."""
        if not self._asked.logprobs:
            return None
        found: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        lengths = _lengths(self._tokens.bytes_of(token) for token in self._item.prompt)
        scores: list[Likelihood | None] = [None, *self._scores]
        for token, score, length in zip(self._item.prompt, scores, lengths, strict=True):
            if score is None:
                self._append(found, token, None, None, length)
            else:
                self._append(found, token, score.logprob, score.listed, length)
        self._offset = len(self._prompt)
        return found

    def _append(
        self,
        found: Json,
        token: int,
        logprob: float | None,
        best: Sequence[tuple[int, float]] | None,
        length: int,
    ) -> None:
        top: dict[str, float] | None = None
        if best is not None and logprob is not None and self._item.settings.top_logprobs:
            top = {}
            for other, value in best:
                top.setdefault(self._tokens.text_of(other), value)
            top.setdefault(self._tokens.text_of(token), logprob)
        found["tokens"].append(self._tokens.text_of(token))
        found["token_logprobs"].append(logprob)
        found["top_logprobs"].append(top)
        found["text_offset"].append(self._offset)
        self._offset += length

    def _content(self, step: Step) -> Json:
        best = [self._token(one.token, one.logprob) for one in step.top_logprobs]
        return self._token(step.token, step.logprob) | {"top_logprobs": best}

    def _token(self, token: int, logprob: float) -> Json:
        content = self._tokens.bytes_of(token)
        text = content.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(content)}


class Response:
    """The frame around the choices of one request."""

    def __init__(self, asked: Asked, items: Sequence[Item], model: str) -> None:
        """Give the response its name and time."""
        self._asked = asked
        self._items = items
        prefix = "chatcmpl" if asked.chat else "cmpl"
        kind = "chat.completion" if asked.chat else "text_completion"
        self._chunked = f"{kind}.chunk" if asked.chat else kind
        self._whole = kind
        self.id = f"{prefix}-{uuid.uuid4().hex}"
        self._common = {"id": self.id, "created": int(time.time()), "model": model}

    def whole(self, choices: Sequence[Choice]) -> Json:
        """Return the body of a response that comes in one piece."""
        listed = [choice.whole() for choice in choices]
        frame = {"object": self._whole, **self._common}
        return frame | {"choices": listed, "usage": self.usage(choices)}

    def chunk(self, choice: Json) -> Json:
        """Return a streamed chunk about one choice."""
        frame: Json = {"object": self._chunked, **self._common, "choices": [choice]}
        return frame | {"usage": None} if self._asked.include_usage else frame

    def usage_chunk(self, choices: Sequence[Choice]) -> Json:
        """Return the streamed chunk that tells the usage."""
        frame = {"object": self._chunked, **self._common}
        return frame | {"choices": [], "usage": self.usage(choices)}

    def usage(self, choices: Sequence[Choice]) -> Json:
        """Return how many tokens there were; those of a prompt count once for its answers."""
        firsts = choices[:: self._asked.n]
        prompt = sum(len(item.prompt) for item in self._items[:: self._asked.n])
        completion = sum(choice.completion_tokens for choice in choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(choice.cached for choice in firsts)},
        }


def _lengths(pieces: Iterable[bytes]) -> list[int]:
    """Return how many characters are complete with each piece."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [len(decoder.decode(piece)) for piece in pieces]
