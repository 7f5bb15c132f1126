"""Between HTTP and the model: one thread owns MLX, and requests join its batch between two passes.

    async for event in engine.submit(prompts):
        …

The prompts of a request become sequences of the model's `Runner`; every pass yields steps of some
of them. They come back as events, which name an answer by the index of its prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import EntropixError
from ..settings import Settings
from ..step import Step
from .metrics import AnswerTimes, ServerMetrics
from .openai.errors import RequestError, internal_error, stopping_error

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..api.runner import Runner
    from ..engine.prompts import Likelihood, PromptCache
    from ..engine.sequence import Sequence as TextSequence
    from ..models.base import LanguageModel

T = TypeVar("T")
Load = Callable[[], "tuple[LanguageModel, TokenizerWrapper]"]

JOIN_SECONDS = 10.0
"""How long `stop` waits for the thread: it ends within one pass or chunk of a prompt."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Capacity:
    """The limits of what a server takes on at once."""

    batch: int
    """Answers that run together."""
    queue: int
    """Answers that may wait beside them."""
    cache_bytes: int
    """What the prompt cache may take."""


@dataclass(frozen=True)
class Begun:
    """An answer's prompt is computed."""

    index: int
    """Of the answer among those of its request."""
    cached: int
    """Tokens of the prompt that were in the cache before."""
    scores: tuple[Likelihood, ...] = ()
    """Of the prompt's tokens after the first, if they were asked for."""


@dataclass(frozen=True)
class Stepped:
    """An answer has its next step."""

    index: int
    step: Step


@dataclass(frozen=True)
class Ended:
    """An answer is complete."""

    index: int
    several: dict[str, Any] | None = None
    """All answers among which it was chosen, if there were several."""


Event = Begun | Stepped | Ended


@dataclass(eq=False)
class AnswerQueue:
    """The answers to one request: iterate over their events.

    Raises:
        EntropixError: what ended all of them before their end; raised where the next event is
            asked for.
    """

    prompts: Sequence[tuple[Sequence[int], Settings]]
    """The token ids and the settings of each."""
    forced: Sequence[int] = ()
    """Tokens that each begins with, whatever would be drawn."""
    scored: bool = False
    """Whether the prompts' own tokens are scored, too."""
    cancel: threading.Event = field(default_factory=threading.Event)
    """Ends all answers before their next token; set it from any thread."""
    began: float = field(default_factory=time.perf_counter)
    left: int = field(init=False)
    """Answers that have not ended on the model's thread."""

    def __post_init__(self) -> None:
        self.left = len(self.prompts)
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[list[Event | Exception]] = asyncio.Queue()
        self._new: list[Event | Exception] = []

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        left = len(self.prompts)
        try:
            while left:
                for event in await self._arrived.get():
                    # Lets the loop see to others, and notice that this client has gone: neither
                    # the queue nor `send` waits while there is more.
                    await asyncio.sleep(0)
                    if isinstance(event, Exception):
                        raise event
                    left -= isinstance(event, Ended)
                    yield event
        finally:
            self.cancel.set()

    def add(self, event: Event | Exception) -> None:
        """Add an event, to be sent with the next `flush`; none follows the end of all."""
        if not self.left:
            return
        self._new.append(event)
        if isinstance(event, Exception):
            self.left = 0
            self.cancel.set()
        elif isinstance(event, Ended):
            self.left -= 1

    def flush(self) -> None:
        if self._new:
            new, self._new = self._new, []
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._arrived.put_nowait, new)

    def fail(self, error: Exception) -> None:
        self.add(error)
        self.flush()


@dataclass
class _Served:
    """An answer on the model's thread."""

    answers: AnswerQueue
    index: int
    times: AnswerTimes
    begun: bool = False


class ServingEngine:
    """Answers requests with the model that it holds, in a thread of its own.

    Every public method may be called on any other thread.
    """

    def __init__(self, capacity: Capacity, metrics: ServerMetrics) -> None:
        self.metrics = metrics
        self._capacity = capacity
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[AnswerQueue] = []
        self._draining = self._interrupted = self._stopping = False
        self._loaded: tuple[LanguageModel, TokenizerWrapper] | None = None
        self._cache: PromptCache | None = None
        self._runner: Runner | None = None
        self._running: dict[TextSequence, _Served] = {}
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def outstanding(self) -> int:
        """Answers that have not ended."""
        return sum(answers.left for answers in self._open)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Call a function on the model's thread between two passes.

        Raises:
            RequestError: the server stops.
        """
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        with self._lock:
            self.check_room()
            self._jobs.put(job)
        return future

    def load(self, load: Load) -> Future[tuple[LanguageModel, TokenizerWrapper]]:
        """Load a model on the model's thread; the one before leaves memory first."""

        def swap() -> tuple[LanguageModel, TokenizerWrapper]:
            import mlx.core as mx

            self._fail_all(stopping_error())  # what is left of requests whose clients have gone
            self._loaded = None
            gc.collect()
            mx.clear_cache()
            self._loaded = load()
            self._open_runner()
            return self._loaded

        return self.call(swap)

    def check_room(self, answers: int = 0) -> None:
        """Refuse answers for which there is no place, and whatever comes while the server stops.

        Raises:
            RequestError: the queue is full, or the server stops.
        """
        if self._draining or not self.alive:
            raise stopping_error()
        self._open = [other for other in self._open if other.left]
        if answers and self.outstanding + answers > self._capacity.batch + self._capacity.queue:
            message = "too many answers wait already: ask again in some seconds"
            raise RequestError(message, status=429, code="queue_full")

    def submit(
        self,
        prompts: Sequence[tuple[Sequence[int], Settings]],
        forced: Sequence[int] = (),
        scored: bool = False,
    ) -> AnswerQueue:
        """Have prompts answered; call it on the event loop that takes the answers.

        Raises:
            RequestError: as for `check_room`.
        """
        with self._lock:
            self.check_room(len(prompts))
            answers = AnswerQueue(prompts, forced, scored)
            self._open.append(answers)
            self._jobs.put(lambda: self._add(answers))
        return answers

    def drain(self, interrupt: bool = False) -> None:
        """Refuse new requests and end those that wait; `interrupt` ends those that run, too."""
        with self._lock:  # whatever was submitted before is ahead of this job in the queue
            self._draining = True
            self._interrupted |= interrupt
            self._jobs.put(lambda: None)

    def stop(self, seconds: float = JOIN_SECONDS) -> None:
        """End everything and the thread. See `alive`: one that is inside MLX may take longer."""
        self._stopping = True
        self.drain(interrupt=True)
        if self.alive:
            self._thread.join(seconds)

    # ── On the model's thread ───────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stopping:
            self._work()
            if self._running:
                self._advance()
            if self._runner is not None and self._cache is not None:
                self.metrics.waiting.set(len(self._runner.batch.waiting))
                self.metrics.running.set(len(self._runner.batch.running))
                self.metrics.cached_bytes.set(self._cache.nbytes)
        self._fail_all(stopping_error())

    def _work(self) -> None:
        """Do the jobs that came; wait for one if there is nothing else to do."""
        waits = not self._running
        while True:
            try:
                job = self._jobs.get(block=waits)
            except queue.Empty:
                return
            waits = False
            job()
            if self._interrupted:
                self._fail_all(stopping_error())
            elif self._draining:
                self._fail_waiting(stopping_error())

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

    def _add(self, answers: AnswerQueue) -> None:
        """Give the answers of a request to the runner; whatever is wrong with one ends them all."""
        from ..answer.hooks import Hooks

        runner, hooks = self._runner, Hooks(cancel=answers.cancel)
        try:
            if runner is None:
                raise stopping_error()
            for index, (prompt, settings) in enumerate(answers.prompts):
                sequence = runner.add(
                    prompt,
                    runner.resolve(settings),
                    hooks,
                    forced=answers.forced,
                    scored=settings.top_logprobs if answers.scored else None,
                )
                times = AnswerTimes(self.metrics, answers.began)
                self._running[sequence] = _Served(answers, index, times)
        except EntropixError as error:
            answers.fail(error)

    def _advance(self) -> None:
        """Run one pass and report what came of it; a failing pass ends all answers.

        Nothing that was computed can be trusted then; the model itself can.
        """
        try:
            self._pass()
        except Exception:
            _log.exception("a pass failed: all answers were ended")
            self._fail_all(internal_error())
            self._open_runner()

    def _pass(self) -> None:
        assert self._runner is not None
        requests = self._requests()
        for sequence, step in self._runner.advance():
            running = self._running[sequence]
            self._begin(sequence, running)
            running.times.step(step)
            running.answers.add(Stepped(running.index, step))
        for sequence in [sequence for sequence in self._running if self._runner.done(sequence)]:
            self._finish(sequence, self._running.pop(sequence))
        for answers in requests:
            answers.flush()

    def _begin(self, sequence: TextSequence, running: _Served) -> None:
        if running.begun:
            return
        running.begun = True
        self.metrics.prompt_tokens.inc(len(sequence.prompt))
        self.metrics.cached_tokens.inc(sequence.cached)
        running.answers.add(Begun(running.index, sequence.cached, tuple(sequence.likelihoods)))

    def _finish(self, sequence: TextSequence, running: _Served) -> None:
        assert self._runner is not None
        if sequence.error is not None:
            running.answers.add(sequence.error)
        elif not sequence.cancelled:
            self._begin(sequence, running)
            running.times.end()
        several = self._runner.selection(sequence)
        running.answers.add(Ended(running.index, None if several is None else several.to_dict()))

    def _fail_all(self, error: Exception) -> None:
        """End everything; nothing is computed until the next model is loaded."""
        requests = self._requests()
        self._running.clear()
        self._close_runner()
        for answers in requests:
            answers.fail(error)

    def _fail_waiting(self, error: Exception) -> None:
        begun = {
            running.answers
            for sequence, running in self._running.items()
            if sequence.begun or running.begun
        }
        for answers in self._requests():
            if answers not in begun:
                answers.fail(error)

    def _requests(self) -> list[AnswerQueue]:
        return list(dict.fromkeys(running.answers for running in self._running.values()))
