"""Continuous batching: the thread that owns the model; requests join it between two passes."""

# The path of a request, and the four names of an answer on it:
#
# 1. intake.Intake reads the body into a CompletionRequest (openai/parse.py).
# 2. streaming.Responder gets a place in the queue for its answers: a Submission, Batcher.admit.
# 3. The Intake makes each answer a Choice of the response (openai/responses.py), with its prompt
#    and its seed, and Batcher.submit hands the prompts over.
# 4. The model's thread puts each into the batch of the engine's Runner, as a Slot.
# 5. Every pass of the Runner yields steps of slots. They go back as events, which name a choice
#    by its index in the submission; the Responder adds them to it, and sends chunks or the whole.

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..answer.position import Likelihood
from ..errors import EntropixError
from ..settings import Settings
from ..step import Step
from .metrics import ServerMetrics
from .openai.errors import busy_error, internal_error, stopping_error

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..engine.prompt_cache import PromptCache
    from ..engine.runner import Runner
    from ..engine.slot import Slot
    from ..models.base import LanguageModel

Load = Callable[[], "tuple[LanguageModel, TokenizerWrapper]"]

JOIN_SECONDS = 10.0
"""How long `stop` waits for the thread, which ends within one pass or chunk of a prompt."""

MOST_UNREAD = 16
"""Passes whose tokens may wait for whoever asked; then the answer sits out until they are read."""
UNREAD_SECONDS = 0.02
"""After which it is looked again at who reads, while all answers wait for that."""

_log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class Failed:
    """All answers of the request end here."""

    error: Exception


Event = Begun | Stepped | Ended | Failed


@dataclass(eq=False)
class Submission:
    """The answers to one request, from its place in the queue to the model's thread."""

    answers: int
    report: Callable[[list[Event]], None]
    """Takes the events since the last call, on the model's thread."""
    forced: Sequence[int] = ()
    """Tokens that each answer begins with, whatever would be drawn."""
    client: str = ""
    """Who asks: clients share the places for answers."""
    unread: Callable[[], int] = lambda: 0
    """Returns how many reports whoever asks is behind."""
    scored: bool = False
    """Whether the prompts' own tokens are scored, too."""
    cancel: threading.Event = field(default_factory=threading.Event)
    """Ends all answers before their next token; set it from any thread."""
    began: float = field(default_factory=time.perf_counter)
    prompts: Sequence[tuple[Sequence[int], Settings]] = ()
    """The token ids and the settings of each answer, once they are known."""
    left: int = field(init=False)
    """Answers that have not ended."""
    _events: list[Event] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.left = self.answers

    def add(self, event: Event) -> None:
        """Add an event, to be reported with the next `flush`; none follows the end of all."""
        if not self.left:
            return
        self._events.append(event)
        if isinstance(event, Failed):
            self.left = 0
            self.cancel.set()
        elif isinstance(event, Ended):
            self.left -= 1

    def flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self.report(events)

    def fail(self, error: Exception) -> None:
        self.add(Failed(error))
        self.flush()


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

    All but `start` may be called on any other thread.
    """

    def __init__(self, load: Load, capacity: Capacity, metrics: ServerMetrics) -> None:
        self._load = load
        self._capacity = capacity
        self._metrics = metrics
        self._submissions: queue.SimpleQueue[Submission | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: list[Submission] = []
        self._draining = self._interrupted = self._stopping = False
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._served: dict[Slot, tuple[Submission, int]] = {}
        self._begun: set[Slot] = set()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self.model: LanguageModel
        self.tokenizer: TokenizerWrapper

    def start(self) -> None:
        """Load the model, and return when it is ready; errors of loading are raised here."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def outstanding(self) -> int:
        return sum(submission.left for submission in self._open)

    def admit(self, submission: Submission) -> None:
        """Give a request its place in the queue; its prompts need not be known yet.

        Raises:
            RequestError: the queue is full, or the server stops.
        """
        with self._lock:
            self._check_open()
            self._open = [other for other in self._open if other.left]
            if self.outstanding + submission.left > self._capacity.batch + self._capacity.queue:
                self._metrics.count("refused_requests_total")
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
            self._check_open()
            submission.prompts = prompts
            self._submissions.put(submission)

    def withdraw(self, submission: Submission) -> None:
        """End the answers of a request before their next token, wherever it is."""
        submission.cancel.set()
        with self._lock:
            if not submission.prompts:
                submission.left = 0

    def _check_open(self) -> None:
        if self._draining or not self.alive:
            raise stopping_error()

    def drain(self) -> None:
        """Refuse new requests, end those that wait with an error, and let the others go on."""
        self._end()

    def interrupt(self) -> None:
        """End all answers; the thread goes on until `stop`."""
        self._end(interrupt=True)

    def stop(self) -> None:
        """End everything and the thread. See `alive`: one that is inside MLX may take longer."""
        self._end(interrupt=True, stop=True)
        if self.alive:
            self._thread.join(JOIN_SECONDS)

    def _end(self, interrupt: bool = False, stop: bool = False) -> None:
        with self._lock:  # whatever was submitted before is ahead of the None in the queue
            self._draining = True
            self._interrupted |= interrupt
            self._stopping |= stop
            self._submissions.put(None)

    def _run(self) -> None:
        try:
            self.model, self.tokenizer = self._load()
        except Exception as error:  # whoever waits for the model raises it
            self._failure = error
            return
        finally:
            self._ready.set()
        from ..engine.prompt_cache import PromptCache
        from ..engine.runner import Runner

        while not self._stopping:
            cache = PromptCache(self._capacity.cache_bytes)
            batch = self._capacity.batch
            with Runner(self.model, self.tokenizer, batch=batch, cache=cache) as runner:
                self._serve(runner, cache)

    def _serve(self, runner: Runner, cache: PromptCache) -> None:
        try:
            while not self._stopping:
                self._take(runner)
                self._advance(runner, cache)
        except Exception:
            # Nothing that was computed can be trusted now; the model itself can.
            _log.exception("a pass failed: all answers were ended")
            self._fail_all(internal_error())

    def _take(self, runner: Runner) -> None:
        """Take new requests; wait for one if there is nothing else to do."""
        # While nobody reads what runs, there is nothing to do for it either.
        seconds = (0 if runner.running else UNREAD_SECONDS) if self._served else None
        while True:
            try:
                submission = self._submissions.get(timeout=seconds, block=seconds != 0)
            except queue.Empty:
                return
            seconds = 0
            if submission is not None:
                self._add(runner, submission)
            if self._interrupted:
                runner.close()
                self._fail_all(stopping_error())
            elif self._draining:
                self._fail_waiting(stopping_error())

    def _add(self, runner: Runner, submission: Submission) -> None:
        """Give the answers of a request to the runner; whatever is wrong with one ends them all."""
        from ..answer.hooks import Hooks

        hooks = Hooks(cancel=submission.cancel)
        try:
            for index, (prompt, settings) in enumerate(submission.prompts):
                slot = runner.add(
                    prompt,
                    runner.resolve(settings),
                    hooks,
                    forced=submission.forced,
                    client=submission.client,
                    scored=settings.top_logprobs if submission.scored else None,
                )
                self._served[slot] = submission, index
        except EntropixError as error:
            submission.fail(error)

    def _advance(self, runner: Runner, cache: PromptCache) -> None:
        submissions = self._running()
        for slot, (submission, _) in self._served.items():
            slot.unread = submission.unread() > MOST_UNREAD
        for slot, step in runner.advance():
            submission, index = self._served[slot]
            self._report_begun(slot)
            self._metrics.step(step)
            submission.add(Stepped(index, step))
        for slot in [slot for slot in self._served if slot.done]:
            self._report_ended(slot)
        self._metrics.gauge(
            waiting_answers=runner.waiting,
            running_answers=runner.running,
            cached_texts=len(cache),
            cached_bytes=cache.bytes,
        )
        for submission in submissions:
            submission.flush()

    def _report_begun(self, slot: Slot) -> None:
        if slot in self._begun:
            return
        self._begun.add(slot)
        submission, index = self._served[slot]
        prompt = slot.prompt
        self._metrics.count("prompt_tokens_total", len(prompt.tokens))
        self._metrics.count("cached_prompt_tokens_total", prompt.cached)
        self._metrics.first_token(time.perf_counter() - submission.began)
        submission.add(Begun(index, prompt.cached, tuple(prompt.likelihoods)))

    def _report_ended(self, slot: Slot) -> None:
        submission, index = self._served[slot]
        if slot.error is not None:
            submission.add(Failed(slot.error))
        elif not slot.cancelled:
            self._report_begun(slot)
        del self._served[slot]
        self._begun.discard(slot)
        several = slot.selection
        submission.add(Ended(index, None if several is None else several.to_dict()))

    def _fail_all(self, error: Exception) -> None:
        submissions = self._running()
        self._served.clear()
        self._begun.clear()
        for submission in submissions:
            submission.fail(error)

    def _fail_waiting(self, error: Exception) -> None:
        begun = {
            submission
            for slot, (submission, _) in self._served.items()
            if slot.prompt.opened or slot in self._begun
        }
        for submission in self._running():
            if submission not in begun:
                submission.fail(error)

    def _running(self) -> list[Submission]:
        return list(dict.fromkeys(submission for submission, _ in self._served.values()))
