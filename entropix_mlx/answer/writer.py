"""Making `Step`s: text as it becomes printable, the end of an answer, and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..profiles.sections import PositionScore
from ..samplers.row import Row
from ..step import LOOP, NOT_OF_THE_MODEL, Alternative, Origin, Step, Strategy
from .loops import LoopDetector
from .text_stream import StopStrings, TextStream

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Writer:
    """Turns what was read at the positions of one answer into its steps."""

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        position_score: PositionScore,
        limit: int,
        stops: Sequence[str] = (),
        clock: Callable[[], float] = lambda: 0.0,
        prompt: Sequence[int] = (),
        loops: LoopDetector | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            position_score: the weights of the score in each step.
            limit: the most steps, those that were written before among them.
            stops: strings that end the answer.
            clock: seconds since generation began.
            prompt: how the first word is written depends on it.
            loops: ends an answer that is in a loop; None lets it go on.
        """
        self.index = 0
        self.finished = False
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer, prompt)
        self._stops = StopStrings(stops)
        self._loops = loops
        self._position_score = position_score
        self._limit = limit
        self._clock = clock
        self._skipped = 0.0
        self._shown: list[int] = []
        self._length = 0

    @property
    def room(self) -> int:
        return self._limit - self.index

    @property
    def complete(self) -> int:
        """Tokens of the answer whose whole text is part of it: all, unless a stop string came."""
        if not self._stops.found:
            return self.index
        ends = [0, *self._shown]
        complete = sum(end <= self._length for end in self._shown)
        while complete and ends[complete] == ends[complete - 1]:
            complete -= 1  # without text of its own: it may begin a character of the stop string
        return complete

    def skip(self, step: Step) -> None:
        text = self._stream.add(step.token)
        self._shown.append((self._shown[-1] if self._shown else 0) + len(text))
        self._stops.resume(text, step.text)
        self._length += len(step.text)
        self.index = step.index + 1
        self._skipped = step.time

    def write(self, row: Row, origin: Origin, **about: Any) -> Step:
        """Return the next step; `about` are further fields of it."""
        given = origin is Origin.READ
        finish_reason = ("read" if given else "length") if self.room == 1 else None
        ends = row.token in self._tokenizer.eos_token_ids
        if ends and origin not in (*NOT_OF_THE_MODEL, Origin.READ):
            finish_reason = "stop"
        looped = self._loops is not None and self._loops.add(row.token)
        ending = finish_reason or (LOOP if looped else None)
        text = self._text(row.token, ending, origin is Origin.RETRIEVED)
        if self._stops.found or ending == LOOP:
            finish_reason = "stop"
        self.finished = finish_reason is not None
        step = Step(
            index=self.index,
            token=row.token,
            text=text,
            logprob=row.logprob,
            **row.metrics._asdict(),
            position_score=self._position_score.of(row.metrics),
            strategy=Strategy.THINK if origin in NOT_OF_THE_MODEL else row.strategy,
            temperature=row.temperature,
            top_p=row.top_p,
            top_k=row.top_k,
            min_p=row.min_p,
            origin=origin,
            strain=row.strain,
            allowed=self._alternatives(row.allowed),
            top_logprobs=self._alternatives(row.alternatives),
            **about,
            finish_reason=finish_reason,
            stopped=LOOP if ending == LOOP and not self._stops.found else None,
            time=self._skipped + self._clock(),
        )
        self.index += 1
        return step

    def _alternatives(self, listed: Sequence[tuple[int, float]]) -> tuple[Alternative, ...]:
        decode = self._tokenizer.decode
        return tuple(Alternative(token, decode([token]), p) for token, p in listed)

    def _text(self, token: int, ending: str | None, quoted: bool) -> str:
        """Return the text that is certain once a token has joined the answer.

        A stop string in a text that is quoted ends no answer.
        """
        raw = "" if ending == "stop" else self._stream.add(token)
        if ending is not None:
            raw += self._stream.finish()
        self._shown.append((self._shown[-1] if self._shown else 0) + len(raw))
        text = self._stops.skip(raw) if quoted else self._stops.add(raw)
        if ending is not None and not self._stops.found:
            text += self._stops.end()
        self._length += len(text)
        return text


class Clock:
    """Seconds since generation began, without those in which a person thinks."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._asked = 0.0

    def __call__(self) -> float:
        return time.perf_counter() - self._began

    def stop(self) -> None:
        self._asked = time.perf_counter()

    def go_on(self) -> None:
        self._began += time.perf_counter() - self._asked
