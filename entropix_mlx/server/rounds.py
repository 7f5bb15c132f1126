"""The answers of a server on the model's thread: requests join between two passes of the runner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..errors import EntropixError
from .events import Begun, Came, Ended, Event, Failed, Item, Order
from .metrics import Metrics

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..engine.prompt_cache import PromptCache
    from ..engine.slot import Slot
    from ..models.base import LanguageModel


class Rounds:
    """Runs orders on one model; everything happens on the thread that loaded it."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        batch: int,
        cache: PromptCache,
        metrics: Metrics,
    ) -> None:
        """Begin without orders.

        Args:
            model: from `load`.
            tokenizer: from `load`.
            batch: answers that run at once, if the memory holds them.
            cache: the prompt cache.
            metrics: where everything is counted.
        """
        from ..engine.runner import Runner

        self._runner = Runner(model, tokenizer, batch=batch, cache=cache)
        self._cache = cache
        self._metrics = metrics
        self._served: dict[Slot, tuple[Order, Item]] = {}
        self._begun: set[Slot] = set()
        self._noted: dict[Order, None] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._served

    def take(self, order: Order) -> None:
        """Take an order on; one that cannot be carried out fails at once."""
        from ..answer.hooks import Hooks

        hooks = Hooks(cancel=order.cancel)
        try:
            for item in order.items:
                resolved = self._runner.resolve(item.settings)
                scored = item.settings.top_logprobs if item.scored else None
                slot = self._runner.add(
                    item.prompt, resolved, hooks, forced=item.begin, scored=scored
                )
                self._served[slot] = order, item
        except EntropixError as error:
            order.note(Failed(error))
        order.flush()

    def advance(self) -> None:
        """Run one pass, admit and retire answers, and report to the orders what happened."""
        for slot, step in self._runner.advance():
            order, item = self._served[slot]
            self._begin(slot)
            self._metrics.step(step)
            self._note(order, Came(item.index, step))
        for slot in [slot for slot in self._served if slot.ended]:
            self._end(slot)
        self._metrics.gauge(
            waiting_answers=self._runner.waiting,
            running_answers=self._runner.running,
            cached_texts=len(self._cache),
            cached_bytes=self._cache.bytes,
        )
        for order in self._noted:
            order.flush()
        self._noted.clear()

    def close(self, error: Exception) -> None:
        """End everything, with this error for all."""
        orders = dict.fromkeys(order for order, _ in self._served.values())
        self._runner.close()
        self._served.clear()
        for order in orders:
            order.note(Failed(error))
            order.flush()

    def drop_waiting(self, error: Exception) -> None:
        """End the orders that have not begun, and let the others run."""
        waiting = {slot for slot in self._served if not (slot.prompt.opened or slot in self._begun)}
        begun = {order for slot, (order, _) in self._served.items() if slot not in waiting}
        for order in dict.fromkeys(self._served[slot][0] for slot in waiting):
            if order not in begun:
                order.note(Failed(error))
                order.flush()

    def _note(self, order: Order, event: Event) -> None:
        """Add an event, which is reported at the end of the turn."""
        order.note(event)
        self._noted[order] = None

    def _begin(self, slot: Slot) -> None:
        """Report that an answer's prompt is computed, once."""
        if slot in self._begun:
            return
        self._begun.add(slot)
        order, item = self._served[slot]
        prompt = slot.prompt
        self._metrics.count("prompt_tokens", len(prompt.tokens))
        self._metrics.count("cached_prompt_tokens", prompt.cached)
        self._note(order, Begun(item.index, prompt.cached, tuple(prompt.likelihoods)))
        self._metrics.first_token(time.perf_counter() - order.began)

    def _end(self, slot: Slot) -> None:
        """Report that an answer has ended."""
        order, item = self._served[slot]
        if slot.error is not None:
            self._note(order, Failed(slot.error))
        elif not slot.cancelled:
            self._begin(slot)
        del self._served[slot]
        self._begun.discard(slot)
        self._note(order, Ended(item.index))
