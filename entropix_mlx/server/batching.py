"""Continuous batching: the thread that owns MLX; requests join it between two passes."""

# The path of a request, and the four names of an answer on it:
#
# 1. intake.BodyReader reads the body, and models.Models finds the model that it names, in memory.
#    Its Intake makes the body a CompletionRequest (openai/parse.py).
# 2. streaming.Responder gets a place in the queue for its answers: a Submission, Batcher.admit.
# 3. The Intake makes each answer a Choice of the response (openai/responses.py), with its prompt
#    and its seed, and Batcher.submit hands the prompts over.
# 4. The model's thread puts each into the batch of the model's Runner, as a Slot.
# 5. Every pass of the Runner yields steps of slots. They go back as events, which name a choice
#    by its index in the submission; the Responder adds them to it, and sends chunks or the whole.

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..settings import Settings
from .metrics import ServerMetrics
from .model_runner import ModelRunner
from .openai.errors import busy_error, stopping_error
from .submission import Submission

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel

T = TypeVar("T")
Load = Callable[[], "tuple[LanguageModel, TokenizerWrapper]"]

JOIN_SECONDS = 10.0
"""How long `stop` waits for the thread: it ends within one pass or chunk of a prompt, and puts
texts on a disk, the newest first."""
UNREAD_SECONDS = 0.02
"""After which it is looked again at who reads, while all answers wait for that."""


@dataclass(frozen=True)
class Capacity:
    """The limits of what a server takes on at once."""

    batch: int
    """Answers of a model that run together."""
    queue: int
    """Answers that may wait beside them."""
    cache_bytes: int
    """What the prompt caches may take: those of all models have equal parts."""
    folder: Path | None = None
    """Where texts go that leave memory."""
    disk_bytes: int = 0
    """What they may take there."""


class Batcher:
    """Answers requests with the models that it loads, in a thread of its own.

    Models take turns, a pass each. Every method may be called on any other thread.
    """

    def __init__(self, capacity: Capacity, metrics: ServerMetrics) -> None:
        self._capacity = capacity
        self._metrics = metrics
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[Submission] = []
        self._draining = self._interrupted = self._stopping = False
        self._runners: list[ModelRunner] = []
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
        return sum(submission.left for submission in self._open)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Call a function on the model's thread between two passes, and return what will come.

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
            self.check_open()
            self._jobs.put(job)
        return future

    def load(self, load: Load, identify: Callable[[], str] | None = None) -> Future[ModelRunner]:
        """Load a model; passes of others wait for that.

        Args:
            load: is called on the model's thread.
            identify: returns what tells the model from all others; without it, none of its texts
                goes to the disk.
        """

        def add() -> ModelRunner:
            model, tokenizer = load()
            disk = None
            if identify is not None and (folder := self._capacity.folder) is not None:
                from ..engine.disk_cache import DiskCache

                disk = DiskCache(folder, self._capacity.disk_bytes, identify(), model)
            runner = ModelRunner(model, tokenizer, self._capacity.batch, self._metrics, disk)
            self._runners.append(runner)
            self._metrics.count("model_loads_total")
            self._share_cache()
            return runner

        return self.call(add)

    def unload(self, runner: ModelRunner) -> Future[None]:
        """Let a model go from memory that nobody uses any more."""

        def remove() -> None:
            import mlx.core as mx

            self._runners.remove(runner)
            runner.close()
            self._share_cache()
            gc.collect()
            mx.clear_cache()

        return self.call(remove)

    def _share_cache(self) -> None:
        for runner in self._runners:
            runner.cache.limit(self._capacity.cache_bytes // len(self._runners))

    def admit(self, submission: Submission) -> None:
        """Give a request its place in the queue; its prompts need not be known yet.

        Raises:
            RequestError: the queue is full, or the server stops.
        """
        with self._lock:
            self.check_open()
            self._open = [other for other in self._open if other.left]
            if self.outstanding + submission.left > self._capacity.batch + self._capacity.queue:
                self._metrics.count("requests_refused_total")
                raise busy_error("too many answers wait already")
            self._open.append(submission)

    def submit(
        self, submission: Submission, prompts: Sequence[tuple[Sequence[int], Settings]]
    ) -> None:
        """Hand the prompts of a request that was admitted to the model's thread.

        Raises:
            RequestError: the server stops.
        """
        with self._lock:
            self.check_open()
            submission.prompts = prompts
            self._jobs.put(lambda: submission.runner.add(submission))

    def withdraw(self, submission: Submission) -> None:
        """End the answers of a request before their next token, wherever it is."""
        submission.cancel.set()
        with self._lock:
            if not submission.prompts:
                submission.left = 0

    def check_open(self) -> None:
        """Refuse whatever comes while the server stops."""
        if self._draining or not self.alive:
            raise stopping_error()

    def drain(self) -> None:
        """Refuse new requests, end those that wait with an error, and let the others go on."""
        self._end()

    def interrupt(self) -> None:
        """End all answers; the thread goes on until `stop`."""
        self._end(interrupt=True)

    def stop(self, seconds: float = JOIN_SECONDS) -> None:
        """End everything and the thread. See `alive`: one that is inside MLX may take longer."""
        self._end(interrupt=True, stop=True)
        if self.alive:
            self._thread.join(seconds)

    def _end(self, interrupt: bool = False, stop: bool = False) -> None:
        with self._lock:  # whatever was submitted before is ahead of this job in the queue
            self._draining = True
            self._interrupted |= interrupt
            self._stopping |= stop
            self._jobs.put(lambda: None)

    def _run(self) -> None:
        while not self._stopping:
            self._work()
            for runner in self._runners:
                if runner.busy:
                    runner.advance()
            self._metrics.gauge(
                num_requests_waiting=sum(runner.waiting for runner in self._runners),
                num_requests_running=sum(runner.running for runner in self._runners),
                prefix_cache_texts=sum(len(runner.cache) for runner in self._runners),
                prefix_cache_bytes=sum(runner.cache.bytes for runner in self._runners),
                models_loaded=len(self._runners),
            )
        for runner in self._runners:
            runner.close()

    def _work(self) -> None:
        """Do the jobs that came; wait for one if there is nothing else to do."""
        seconds = None
        if any(runner.busy for runner in self._runners):
            # While nobody reads what runs, there is nothing to do for it either.
            seconds = 0 if any(runner.running for runner in self._runners) else UNREAD_SECONDS
        while True:
            try:
                job = self._jobs.get(timeout=seconds, block=seconds != 0)
            except queue.Empty:
                return
            seconds = 0
            job()
            for runner in self._runners:
                if self._interrupted:
                    runner.fail_all(stopping_error())
                elif self._draining:
                    runner.fail_waiting(stopping_error())
