"""Between HTTP and the model: one thread owns MLX, and answers join its batch between two passes.

async for answer, step in engine.submit(answers):
    …                                # a step of None is the end of that answer
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import EntropixError
from ..settings import Settings
from ..step import Step
from .errors import RequestError, as_request_error, internal_error, stopping_error
from .metrics import ServerMetrics

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..answer.selection import AnswerSelection
    from ..api.runner import Runner
    from ..engine.prompts import Likelihood, PromptCache
    from ..engine.sequence import Sequence as TextSequence
    from ..models.base import LanguageModel

    Loaded = tuple[LanguageModel, TokenizerWrapper]

JOIN_SECONDS = 10.0
"""How long `stop` waits for the thread: it ends within one pass or chunk of a prompt."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Capacity:
    """How much a server computes and keeps at once."""

    batch: int
    """Answers that run together."""
    queue: int
    """Further answers that may wait."""
    cache_bytes: int
    """Memory of the prompt cache."""


@dataclass(eq=False)
class ServedAnswer:
    """An answer to a prompt, with what the model's thread finds out besides its steps."""

    prompt: Sequence[int]
    settings: Settings
    forced: Sequence[int] = ()
    """Tokens that it begins with, whatever would be drawn."""
    scored: bool = False
    """Whether the prompt's own tokens are scored."""
    cached: int = field(default=0, init=False)
    """Tokens of the prompt that were in the prompt cache."""
    likelihoods: Sequence[Likelihood] = field(default=(), init=False)
    """Of the prompt's tokens after the first, if they are scored."""
    selection: dict[str, Any] | None = field(default=None, init=False)
    """All answers among which it was chosen, if there were several."""


AnyAnswer = TypeVar("AnyAnswer", bound=ServedAnswer)


class AnswerQueue(Generic[AnyAnswer]):
    """The answers to one request: iterate over their steps.

    Raises:
        EntropixError: what ended all of them before their end; raised where the next step is
            asked for.
    """

    def __init__(self, answers: Sequence[AnyAnswer]) -> None:
        self.answers = answers
        self.cancel = threading.Event()
        """Ends all answers before their next token; set it from any thread."""
        self.began = time.perf_counter()
        self.left = len(answers)
        """Answers that have not ended on the model's thread."""
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[list[tuple[AnyAnswer, Step | None] | Exception]]
        self._arrived = asyncio.Queue()
        self._new: list[tuple[AnyAnswer, Step | None] | Exception] = []

    async def __aiter__(self) -> AsyncGenerator[tuple[AnyAnswer, Step | None], None]:
        left = len(self.answers)
        try:
            while left:
                for arrival in await self._arrived.get():
                    # Neither the queue nor `send` waits while there is more: give the loop time
                    # for other requests, and to notice that this client has gone.
                    await asyncio.sleep(0)
                    if isinstance(arrival, Exception):
                        raise arrival
                    left -= arrival[1] is None
                    yield arrival
        finally:
            self.cancel.set()

    def add(self, answer: AnyAnswer, step: Step | None) -> None:
        """Add a step, which the next `flush` sends."""
        if self.left:
            self._new.append((answer, step))
            self.left -= step is None

    def flush(self) -> None:
        if self._new:
            new, self._new = self._new, []
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._arrived.put_nowait, new)

    def fail(self, error: Exception) -> None:
        if self.left:
            self.left = 0
            self.cancel.set()
            self._new.append(error)
            self.flush()


class _Served:
    """An answer on the model's thread, and the times of its tokens."""

    def __init__(
        self, answer: ServedAnswer, queue: AnswerQueue[Any], metrics: ServerMetrics
    ) -> None:
        self.answer = answer
        self.queue = queue
        self.begun = False
        """Whether the prompt was computed."""
        self._metrics = metrics
        self._last = queue.began
        self._logprobs: list[float] = []

    def begin(self, sequence: TextSequence) -> None:
        if not self.begun:
            self.begun = True
            self._metrics.prompt_tokens.inc(len(sequence.prompt))
            self._metrics.cached_tokens.inc(sequence.cached)
            self.answer.cached = sequence.cached
            self.answer.likelihoods = sequence.likelihoods

    def step(self, step: Step) -> None:
        metrics, now = self._metrics, time.perf_counter()
        latency = metrics.next_token if self._logprobs else metrics.first_token
        latency.observe(now - self._last)
        self._last = now
        self._logprobs.append(step.logprob)
        metrics.tokens.inc()
        metrics.strategies.labels(step.strategy).inc()
        if math.isfinite(step.entropy):
            metrics.entropy.observe(step.entropy)
        self.queue.add(self.answer, step)

    def end(self, selection: AnswerSelection | None) -> None:
        self._metrics.whole.observe(time.perf_counter() - self.queue.began)
        if self._logprobs:
            self._metrics.confidence.observe(math.exp(fmean(self._logprobs)))
        self.answer.selection = None if selection is None else selection.to_dict()
        self.queue.add(self.answer, None)


class ServingEngine:
    """Answers requests with the model that it holds, in a thread of its own.

    Every public method may be called on any other thread.
    """

    def __init__(self, capacity: Capacity, metrics: ServerMetrics) -> None:
        self.metrics = metrics
        self.draining = False
        self._capacity = capacity
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        """Computes one pass after the other; between two of them, it does what else came."""
        self._lock = threading.Lock()
        self._open: list[AnswerQueue[Any]] = []
        self._end: Future[None] | None = None
        self._loaded: Loaded | None = None
        self._cache: PromptCache | None = None
        self._runner: Runner | None = None
        self._running: dict[TextSequence, _Served] = {}

    @property
    def alive(self) -> bool:
        """Whether the thread still works."""
        return self._end is None or not self._end.done()

    @property
    def outstanding(self) -> int:
        """Answers that have not ended."""
        return sum(answers.left for answers in self._open)

    def load(self, load: Callable[[], Loaded]) -> Future[Loaded]:
        """Load a model on the model's thread; the previous one leaves memory first.

        Raises:
            RequestError: the server stops.
        """
        with self._lock:
            self.check_room()
            return self._thread.submit(self._load, load)

    def check_room(self, answers: int = 0) -> None:
        """Check that answers may be submitted.

        Raises:
            RequestError: the queue is full, or the server stops.
        """
        if self.draining:
            raise stopping_error()
        self._open = [other for other in self._open if other.left]
        if answers and self.outstanding + answers > self._capacity.batch + self._capacity.queue:
            message = "too many answers wait already: ask again in some seconds"
            raise RequestError(message, status=429, code="queue_full")

    def submit(self, answers: Sequence[AnyAnswer]) -> AnswerQueue[AnyAnswer]:
        """Compute the answers to one request; call it on the event loop that takes their steps.

        Raises:
            RequestError: as for `check_room`.
        """
        with self._lock:
            self.check_room(len(answers))
            submitted = AnswerQueue(answers)
            self._open.append(submitted)
            self._thread.submit(self._add, submitted)
        return submitted

    def drain(self, interrupt: bool = False) -> None:
        """Refuse new requests and end those that wait; `interrupt` ends those that run, too."""
        with self._lock:  # whatever was submitted before is ahead in the thread's queue
            self.draining = True
            if self._end is None:
                self._thread.submit(self._fail, stopping_error(), waiting=not interrupt)

    def stop(self, seconds: float = JOIN_SECONDS) -> None:
        """End everything and the thread; `alive` tells whether it is still inside MLX."""
        self.drain(interrupt=True)
        with self._lock:
            if self._end is None:
                self._end = self._thread.submit(lambda: None)
                self._thread.shutdown(wait=False)
        wait([self._end], seconds)

    # ── On the model's thread ───────────────────────────────────────────────────────────────────

    def _load(self, load: Callable[[], Loaded]) -> Loaded:
        import mlx.core as mx

        self._fail(stopping_error())  # what is left of requests whose clients have gone
        self._loaded = None
        gc.collect()
        mx.clear_cache()
        self._loaded = load()
        self._open_runner()
        return self._loaded

    def _open_runner(self) -> None:
        from ..api.runner import Runner, SharedRunner
        from ..engine.prompts import PromptCache

        assert self._loaded is not None
        self._cache = PromptCache(self._capacity.cache_bytes)
        kind = Runner if self._loaded[0].group is None else SharedRunner
        runner = kind(*self._loaded, size=self._capacity.batch, cache=self._cache)
        self._runner = runner.__enter__()

    def _close_runner(self) -> None:
        if self._runner is not None and self._cache is not None:
            self._runner.__exit__()
            self._cache.clear()
        self._runner = None

    def _add(self, answers: AnswerQueue[Any]) -> None:
        """Add the answers to one request to the batch; an error of one of them ends them all."""
        from ..answer.hooks import Hooks

        runner, hooks = self._runner, Hooks(cancel=answers.cancel)
        is_idle = not self._running
        try:
            if runner is None:
                raise stopping_error()
            for answer in answers.answers:
                sequence = runner.add(
                    answer.prompt,
                    runner.resolve(answer.settings),
                    hooks,
                    forced=answer.forced,
                    scored=answer.settings.top_logprobs if answer.scored else None,
                )
                self._running[sequence] = _Served(answer, answers, self.metrics)
        except Exception as error:
            if not isinstance(error, EntropixError):
                _log.exception("answers could not begin")
            answers.fail(as_request_error(error))
        if is_idle:
            self._thread.submit(self._advance)

    def _advance(self) -> None:
        """Run one pass and report its steps; if it fails, all answers end.

        What was computed cannot be trusted then, so the prompt cache is emptied.
        """
        if not self._running:
            return
        try:
            self._pass()
        except Exception:
            _log.exception("a pass failed: all answers were ended")
            self._fail(internal_error())
            self._open_runner()
        with contextlib.suppress(RuntimeError):  # the thread ends
            self._thread.submit(self._advance)

    def _pass(self) -> None:
        assert self._runner is not None
        assert self._cache is not None
        queues = self._queues()
        for sequence, step in self._runner.advance():
            served = self._running[sequence]
            served.begin(sequence)
            served.step(step)
        for sequence in [sequence for sequence in self._running if self._runner.done(sequence)]:
            served = self._running.pop(sequence)
            if sequence.error is not None:
                served.queue.fail(sequence.error)
            elif sequence.cancelled:
                served.queue.add(served.answer, None)
            else:
                served.begin(sequence)
                served.end(self._runner.selection(sequence))
        for answers in queues:
            answers.flush()
        self.metrics.waiting.set(len(self._runner.batch.waiting))
        self.metrics.running.set(len(self._runner.batch.running))
        self.metrics.cached_bytes.set(self._cache.nbytes)

    def _fail(self, error: Exception, waiting: bool = False) -> None:
        """End all answers, and compute nothing until the next model is loaded.

        With `waiting`, end only those to requests whose answers all wait.
        """
        queues = self._queues()
        if waiting:
            begun = [s for s, served in self._running.items() if s.begun or served.begun]
            queues -= {self._running[sequence].queue for sequence in begun}
        else:
            self._running.clear()
            self._close_runner()
        for answers in queues:
            answers.fail(error)

    def _queues(self) -> set[AnswerQueue[Any]]:
        return {served.queue for served in self._running.values()}
