"""Continuous batching: the thread that owns the model; requests join it between two passes."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .events import Ended, Event, Failed, Prompts, Report, Submission
from .metrics import ServerMetrics
from .openai.errors import SERVER, RequestError, internal_error, stopping_error
from .prompt_cache import PromptCache

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel
    from .rounds import Rounds

Load = Callable[[], "tuple[LanguageModel, TokenizerWrapper]"]

JOIN_SECONDS = 10.0
"""How long `stop` waits for the thread, which ends within one pass or chunk of a prompt."""
RETRY_SECONDS = 5
"""The `Retry-After` of clients that find the queue full."""

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


class Batcher:
    """Answers requests with a model, in a thread of its own.

    `submit`, `drain` and `stop` may be called on any other thread.
    """

    def __init__(self, load: Load, capacity: Capacity, metrics: ServerMetrics) -> None:
        """Set up; `start` loads the model.

        Args:
            load: returns the model and its tokenizer; called on the thread.
            capacity: the limits of what it takes on.
            metrics: counts what it does.
        """
        self._load = load
        self._capacity = capacity
        self._metrics = metrics
        self._submissions: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._outstanding = 0
        self._draining = self._stopping = self._interrupted = False
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self.model: LanguageModel
        self.tokenizer: TokenizerWrapper

    def start(self) -> None:
        """Load the model, and return when it is ready.

        Raises:
            EntropixError: it cannot be loaded.
        """
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def outstanding(self) -> int:
        """Answers that were submitted and have not ended."""
        return self._outstanding

    def submit(
        self, prompts: Prompts, report: Report, *, forced: Sequence[int] = (), scored: bool = False
    ) -> Submission:
        """Put the prompts of a request into the queue; see `Submission`.

        Raises:
            RequestError: the queue is full, or the server stops.
        """
        left = len(prompts)

        def counted(events: list[Event]) -> None:
            nonlocal left
            ended = sum(isinstance(event, Ended) for event in events)
            gone = left if any(isinstance(event, Failed) for event in events) else ended
            left -= gone
            with self._lock:
                self._outstanding -= gone
            report(events)

        with self._lock:
            if self._draining or not self.alive:
                raise stopping_error()
            if self._outstanding + left > self._capacity.batch + self._capacity.queue:
                self._metrics.count("refused_requests")
                raise _full()
            self._outstanding += left
        submission = Submission(prompts, counted, forced=forced, scored=scored)
        self._submissions.put(submission)
        return submission

    def drain(self) -> None:
        """Refuse new requests, end those that wait with an error, and let the others go on."""
        self._draining = True
        self._submissions.put(None)

    def interrupt(self) -> None:
        """End everything that runs; the thread goes on until `stop`."""
        self._interrupted = self._draining = True
        self._submissions.put(None)

    def stop(self) -> None:
        """End everything and the thread. See `alive`: one that is inside MLX may take longer."""
        self._stopping = self._draining = True
        self._submissions.put(None)
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self.model, self.tokenizer = self._load()
        except Exception as error:  # whoever waits for the model raises it
            self._failure = error
            self._ready.set()
            return
        from ..models.wired import wired_memory

        with wired_memory.raised():
            pool = PromptCache(self._capacity.cache_bytes)
            rounds = self._rounds(pool)
            self._ready.set()
            while not self._stopping:
                rounds = self._round(rounds, pool)
            self._take(rounds)
            rounds.close(stopping_error())

    def _rounds(self, pool: PromptCache) -> Rounds:
        from .rounds import Rounds

        return Rounds(self.model, self.tokenizer, self._capacity.batch, pool, self._metrics)

    def _round(self, rounds: Rounds, pool: PromptCache) -> Rounds:
        """Take new requests, and run one pass; return the rounds that go on afterwards."""
        try:
            self._take(rounds)
            if not (self._stopping or rounds.idle):
                rounds.advance()
        except Exception:
            # Nothing that was computed can be trusted now; the model itself can.
            _log.exception("a pass failed: all answers were ended")
            rounds.close(internal_error())
            pool.clear()
            return self._rounds(pool)
        return rounds

    def _take(self, rounds: Rounds) -> None:
        """Take new requests; wait for one if there is nothing else to do."""
        wait = rounds.idle and not self._stopping
        while True:
            try:
                submission = self._submissions.get(block=wait)
            except queue.Empty:
                return
            wait = False
            if submission is not None:
                rounds.take(submission)
            if self._interrupted:
                rounds.close(stopping_error())
            elif self._draining:
                rounds.drop_waiting(stopping_error())


def _full() -> RequestError:
    return RequestError(
        "too many answers wait already: ask again in some seconds",
        status=429,
        code="queue_full",
        kind=SERVER,
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
