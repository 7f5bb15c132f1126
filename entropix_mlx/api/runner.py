"""Answers on one model, each of which may be chosen among several.

A `Batch` runs sequences. Here is decided how many answers a prompt gets, and which is chosen.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from threading import Event
from typing import Any
from weakref import WeakKeyDictionary

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.budget import Budget
from ..answer.hooks import Hooks
from ..answer.selection import AnswerSelection
from ..engine.batch import Batch, shorten
from ..engine.prompts import PromptCache
from ..engine.sequence import Sequence as TextSequence
from ..models import caches
from ..models.base import LanguageModel
from ..models.ranks import share
from ..profiles.sampler_specs import FILTERS
from ..settings import ResolvedSettings, Settings, draw_seed
from ..step import Step

FURTHER_SAMPLER = "temperature"  # of the answers behind the first one
SHARED_BYTES = 2**28  # of the texts that are kept for prompts which begin as they do
RESOLVED = 16
"""Settings whose samplers and budgets are kept: what shares a sampler is measured together."""
WINDOW = 128  # prompts of a batch whose first answers are compared, to find the least sure ones


class Several:
    """The sequences of the answers to one prompt."""

    def __init__(self, first: TextSequence, batch: Batch) -> None:
        """Begin with the first answer; add the others if their number is stated."""
        settings, rule = first.resolved.settings, first.resolved.profile.answers
        self.selection = AnswerSelection(
            rule, settings.answers, first.resolved.seed, settings.budget
        )
        self.sequences = [first]
        self._batch = batch
        self._cache = None if first.cache is None else caches.copy(first.cache)
        self._hooks = replace(first.hooks, choose=None, on_fork=None, on_prefill=None)
        self._resolved: ResolvedSettings | None = None
        self.add_drawn()

    @property
    def budgeted(self) -> bool:
        return self.sequences[0].resolved.settings.answers == "auto"

    def take(self, steps: Iterable[tuple[TextSequence, Step]]) -> int:
        """Take the steps of a pass; return how many tokens came to other answers than the first."""
        candidates = dict(zip(self.sequences, self.selection.candidates, strict=True))
        others = 0
        for sequence, step in steps:
            if sequence in candidates:
                candidates[sequence].steps.append(step)
                others += sequence is not self.sequences[0]
        for sequence, candidate in candidates.items():
            if self.sequences[0].error is not None:
                sequence.end()
            candidate.ended = sequence.ended
        return others

    def cut(self) -> None:
        """End the other answers where they are."""
        for sequence, candidate in zip(
            self.sequences[1:], self.selection.candidates[1:], strict=True
        ):
            if not sequence.ended:
                sequence.end()
                candidate.ended = self.selection.out_of_budget = True

    def add_drawn(self) -> None:
        """Put the answers that were drawn since into the queue."""
        first, batch = self.sequences[0], self._batch
        for candidate in self.selection.candidates[len(self.sequences) :]:
            if self._resolved is None:
                settings = further(first.resolved.settings, first.resolved.profile.answers)
                self._resolved = settings.resolved(batch.model.config)
            sequence = TextSequence(
                batch.model,
                batch.tokenizer,
                first.prompt,
                self._resolved.with_seed(candidate.seed),
                self._hooks,
                cache=None if self._cache is None else caches.copy(self._cache),
            )
            self.sequences.append(batch.add(sequence))


def further(settings: Settings, rule: Any) -> Settings:
    """Return the settings of the answers behind the first one."""
    filters: dict[str, Any] = {**dict.fromkeys(FILTERS), "temperature": rule.temperature}
    return replace(settings, answers=1, sampler=FURTHER_SAMPLER, **filters)


class Runner:
    """Answers on one model. It belongs on the thread that loaded the model.

    Use it as a context manager, as a `Batch`.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        *,
        size: int = 1,
        cache: PromptCache | None = None,
        pipelined: bool = True,
        ranked: bool = False,
    ) -> None:
        """Begin without answers; most arguments are those of `Batch`.

        Args:
            ranked: whether the first answers to `WINDOW` prompts are awaited, and the least sure of
                them get more; else each is compared with those before it.
        """
        if cache is None and size > 1:
            cache = PromptCache(SHARED_BYTES)
        self.batch = Batch(model, tokenizer, size=size, cache=cache, pipelined=pipelined)
        self._several: dict[TextSequence, Several] = {}
        """Answers to prompts that are not chosen yet, by the first of them."""
        self._behind: dict[TextSequence, Several] = {}
        """Answers to prompts behind the window of those that are ranked."""
        self._selections: WeakKeyDictionary[TextSequence, AnswerSelection] = WeakKeyDictionary()
        self._resolved: deque[tuple[Settings, ResolvedSettings]] = deque(maxlen=RESOLVED)
        self._budgets: deque[tuple[Settings, Budget]] = deque(maxlen=RESOLVED)
        self._ranked = Budget(ranked=True) if ranked else None

    def __enter__(self) -> Runner:
        self.batch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.batch.__exit__()

    def resolve(self, settings: Settings) -> ResolvedSettings:
        """Return settings as `Settings.resolved` does; those that decide alike share a sampler.
        Raises `ProfileError` or `SamplerError` if the settings do not fit."""
        alike = settings.deciding
        known = next((resolved for other, resolved in self._resolved if other == alike), None)
        if known is None:
            known = alike.resolved(self.batch.model.config)
            self._resolved.append((alike, known))
        own = replace(settings, profile=known.profile, changes={})
        return replace(known, settings=own).with_seed(draw_seed() if own.seed is None else own.seed)

    def add(
        self,
        prompt: Sequence[int],
        resolved: ResolvedSettings,
        hooks: Hooks | None = None,
        **how: Any,
    ) -> TextSequence:
        """Put an answer into the queue.

        Where the settings ask for several answers, the sequence is the first of them; an answer
        that is continued, forced or scored is the only one.

        Args:
            prompt, resolved, hooks, **how: the arguments of `Sequence`.

        Raises:
            EntropixError: as for `Sequence`.
        """
        sequence = TextSequence(
            self.batch.model, self.batch.tokenizer, prompt, resolved, hooks, **how
        )
        answers = resolved.settings.answers
        if answers == 1 or how.get("answered") or how.get("forced") or sequence.scored is not None:
            return self.batch.add(sequence)
        several = Several(sequence, self.batch)
        self._selections[sequence] = several.selection
        if several.budgeted and self._ranked is not None:
            self._behind[sequence] = several
            return sequence
        self._several[sequence] = several
        return self.batch.add(sequence)

    def selection(self, sequence: TextSequence) -> AnswerSelection | None:
        """Return all answers to the prompt of a first one; None where it is the only one."""
        return self._selections.get(sequence)

    def done(self, sequence: TextSequence) -> bool:
        """Tell whether no more steps come; behind the first of several, when one is chosen."""
        return sequence.ended and sequence not in self._several

    def advance(self) -> list[tuple[TextSequence, Step]]:
        """Run one pass and return the steps that were committed.

        Of several answers to one prompt, those of the chosen one are returned, as steps of the
        first, when it is chosen.
        """
        steps = self._run_pass()
        hidden = {sequence for each in self._several.values() for sequence in each.sequences}
        shown = [(sequence, step) for sequence, step in steps if sequence not in hidden]
        for first, several in list(self._several.items()):
            if several.selection.done:
                shown += [(first, step) for step in several.selection.chosen.steps]
                del self._several[first]
        return shown

    def stream_all(self, first: TextSequence) -> Generator[tuple[int, Step], None, None]:
        """Yield the steps of several answers as they come, each with the number of its answer.
        Raises `NonFiniteLogitsError` if the model computed NaN or infinite logits."""
        several = self._several[first]
        try:
            with self:
                while not several.selection.done:
                    for sequence, step in self._run_pass():
                        yield several.sequences.index(sequence), step
                    first.ask()
        finally:
            del self._several[first]
            shorten(first, taken=0)
        if first.error is not None:
            raise first.error

    def stream(self, first: TextSequence) -> Generator[Step, None, None]:
        """Yield the steps of the only answer, or of the one that was chosen of several. Raises
        `NonFiniteLogitsError` if the model computed NaN or infinite logits."""
        if first not in self._several:
            yield from self.batch.stream(first)
            return
        for _ in self.stream_all(first):
            pass
        yield from self._selections[first].chosen.steps

    def _run_pass(self) -> list[tuple[TextSequence, Step]]:
        if self._behind and not any(several.budgeted for several in self._several.values()):
            for first in list(self._behind)[:WINDOW]:
                self._several[first] = self._behind.pop(first)
                self.batch.add(first)
        steps = self.batch.step()
        for first, several in self._several.items():
            others = several.take(steps)
            if several.budgeted:
                self._budget_of(first).spend(others)
        self._divide()
        return steps

    def _divide(self) -> None:
        """Draw other answers where the budgets allow it, and end those that they do not."""
        shared: dict[Budget, list[Several]] = {}
        for first, several in self._several.items():
            if several.budgeted:
                shared.setdefault(self._budget_of(first), []).append(several)
        for budget, those in shared.items():
            for several in those:
                if budget.exhausted:
                    several.cut()
            budget.divide([several.selection for several in those])
            for several in those:
                several.add_drawn()

    def _budget_of(self, first: TextSequence) -> Budget:
        if self._ranked is not None:
            return self._ranked
        alike = first.resolved.settings.deciding
        known = next((budget for other, budget in self._budgets if other == alike), None)
        if known is None:
            known = Budget()
            self._budgets.append((alike, known))
        return known


class SharedRunner(Runner):
    """The runner of rank 0. An answer begins and is cancelled between two passes, on all ranks."""

    def __enter__(self) -> Runner:
        share(True, self.batch.model.group)
        self._added: list[tuple[Any, ...]] = []
        self._cancels: list[tuple[Hooks, Event]] = []
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        share(None, self.batch.model.group)
        super().__exit__()

    def add(
        self,
        prompt: Sequence[int],
        resolved: ResolvedSettings,
        hooks: Hooks | None = None,
        **options: Any,
    ) -> TextSequence:
        hooks, cancel = hooks or Hooks(), Event()
        sequence = super().add(prompt, resolved, replace(hooks, cancel=cancel), **options)
        settings = replace(resolved.settings, seed=resolved.seed)
        self._added.append((list(prompt), settings, options))
        self._cancels.append((hooks, cancel))
        return sequence

    def advance(self) -> list[tuple[TextSequence, Step]]:
        cancelled = [at for at, (hooks, _) in enumerate(self._cancels) if hooks.cancelled()]
        added, self._added = self._added, []
        share((added, cancelled), self.batch.model.group)
        for at in cancelled:
            self._cancels[at][1].set()
        return super().advance()


def follow(model: LanguageModel, tokenizer: TokenizerWrapper, size: int, cache_bytes: int) -> None:
    """Compute what rank 0's runners do, until it calls `share(None)` outside of them."""
    while share(None, model.group):
        cancels: list[Event] = []
        with Runner(model, tokenizer, size=size, cache=PromptCache(cache_bytes)) as runner:
            while (news := share(None, model.group)) is not None:
                added, cancelled = news
                for prompt, settings, options in added:
                    cancels.append(Event())
                    hooks = Hooks(cancel=cancels[-1])
                    runner.add(prompt, runner.resolve(settings), hooks, **options)
                for at in cancelled:
                    cancels[at].set()
                with contextlib.suppress(Exception):  # which rank 0 reports
                    runner.advance()
