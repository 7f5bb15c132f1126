"""One model's answers on the model's thread: whose they are, and what is reported of them."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from ..errors import EntropixError
from .metrics import AnswerTimes, ServerMetrics
from .openai.errors import internal_error, stopping_error
from .submission import Begun, Ended, Failed, Stepped, Submission

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..engine.disk_cache import DiskCache
    from ..engine.slot import Slot
    from ..models.base import LanguageModel

MOST_UNREAD = 16
"""Passes whose tokens may wait for whoever asked; then the answer sits out until they are read."""

_log = logging.getLogger(__name__)


class ModelRunner:
    """A model's `Runner`, and the requests whose answers it computes.

    All but its attributes belongs on the model's thread.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        batch: int,
        metrics: ServerMetrics,
        disk: DiskCache | None = None,
    ) -> None:
        from ..engine.prompt_cache import PromptCache
        from ..models.memory import weight_bytes

        self.model = model
        self.bytes = weight_bytes(model)
        self.tokenizer = tokenizer
        self.cache = PromptCache(0, disk)
        self._batch = batch
        self._metrics = metrics
        self._served: dict[Slot, tuple[Submission, int]] = {}
        self._begun: set[Slot] = set()
        self._times: dict[Slot, AnswerTimes] = {}
        self._held = contextlib.ExitStack()
        self._open()

    def _open(self) -> None:
        from ..engine.runner import Runner

        runner = Runner(self.model, self.tokenizer, batch=self._batch, cache=self.cache)
        self._runner = self._held.enter_context(runner)

    @property
    def busy(self) -> bool:
        return bool(self._served)

    @property
    def running(self) -> int:
        return self._runner.running

    @property
    def waiting(self) -> int:
        return self._runner.waiting

    def add(self, submission: Submission) -> None:
        """Give the answers of a request to the runner; whatever is wrong with one ends them all."""
        from ..answer.hooks import Hooks

        hooks = Hooks(cancel=submission.cancel)
        try:
            for index, (prompt, settings) in enumerate(submission.prompts):
                slot = self._runner.add(
                    prompt,
                    self._runner.resolve(settings),
                    hooks,
                    forced=submission.forced,
                    client=submission.client,
                    scored=settings.top_logprobs if submission.scored else None,
                )
                self._served[slot] = submission, index
                self._times[slot] = AnswerTimes(self._metrics, submission.began)
        except EntropixError as error:
            submission.fail(error)

    def advance(self) -> None:
        """Run one pass and report what came of it; a failing pass ends the answers of this model.

        Nothing that was computed can be trusted then; the model itself can.
        """
        try:
            self._advance()
        except Exception:
            _log.exception("a pass failed: all answers were ended")
            self.fail_all(internal_error())
            self.cache.clear()
            self._open()

    def _advance(self) -> None:
        submissions = self._running()
        for slot, (submission, _) in self._served.items():
            slot.unread = submission.unread() > MOST_UNREAD
        for slot, step in self._runner.advance():
            submission, index = self._served[slot]
            self._report_begun(slot)
            self._times[slot].step(step)
            submission.add(Stepped(index, step))
        for slot in self._served:
            if slot.prompt.opened:
                self._times[slot].open()
        for slot in [slot for slot in self._served if slot.done]:
            self._report_ended(slot)
        for submission in submissions:
            submission.flush()

    def _report_begun(self, slot: Slot) -> None:
        if slot in self._begun:
            return
        self._begun.add(slot)
        submission, index = self._served[slot]
        prompt = slot.prompt
        self._metrics.count("prompt_tokens_total", len(prompt.tokens))
        self._metrics.count("prefix_cache_queries_total", len(prompt.tokens))
        self._metrics.count("prefix_cache_hits_total", prompt.cached)
        submission.add(Begun(index, prompt.cached, tuple(prompt.likelihoods)))

    def _report_ended(self, slot: Slot) -> None:
        submission, index = self._served[slot]
        if slot.error is not None:
            submission.add(Failed(slot.error))
        elif not slot.cancelled:
            self._report_begun(slot)
            self._times[slot].end()
        del self._served[slot], self._times[slot]
        self._begun.discard(slot)
        several = slot.selection
        submission.add(Ended(index, None if several is None else several.to_dict()))

    def fail_all(self, error: Exception) -> None:
        """End everything; nothing is computed after that but what is added then."""
        submissions = self._running()
        self._served.clear()
        self._begun.clear()
        self._times.clear()
        for submission in submissions:
            submission.fail(error)
        self._held.close()

    def close(self) -> None:
        self.fail_all(stopping_error())
        self.cache.close()

    def fail_waiting(self, error: Exception) -> None:
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
