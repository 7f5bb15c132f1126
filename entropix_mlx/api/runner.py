"""Answers on one model, of which each may be chosen among several to its prompt.

A `Batch` runs sequences; which of several answers to one prompt is the answer, and when no more of
them are needed, is decided here, with an `AnswerSelection`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..answer.selection import AnswerSelection
from ..engine.batch import Batch, shorten
from ..engine.prompts import PromptCache
from ..engine.sequence import Sequence as TextSequence
from ..models import caches
from ..models.base import LanguageModel
from ..samplers.registry import find_sampler
from ..settings import ResolvedSettings, Settings, draw_seed
from ..step import Step

FURTHER_SAMPLER = "temperature"
"""Of the answers behind the first one."""
SHARED_BYTES = 2**28
"""Of the texts that are kept for prompts which begin as they do."""
RESOLVED = 16
"""Settings whose samplers are cached: sequences that share a sampler are measured together."""
_NOT_DECIDING: dict[str, Any] = {
    "seed": 0,
    "max_tokens": 0,
    "attention_layers": "last",
    "top_logprobs": 0,
    "speculation": "off",
    "stop": (),
    "loops": "allow",
    "constraint": None,
    "thinking_budget": None,
    "answers": 1,
}
"""Fields of `Settings` that no sampler reads."""


class Several:
    """The sequences of the answers to one prompt."""

    def __init__(self, first: TextSequence, batch: Batch) -> None:
        """Begin with the first answer; with a number in its setting `answers`, add all others."""
        self.selection = AnswerSelection(
            first.resolved.profile.answers, first.resolved.settings.answers, first.resolved.seed
        )
        self.sequences = [first]
        self._batch = batch
        self._cache = None if first.cache is None else caches.copy(first.cache)
        self._hooks = replace(first.hooks, choose=None, on_fork=None, on_prefill=None)
        self._resolved: ResolvedSettings | None = None
        self._add_drawn()

    @property
    def done(self) -> bool:
        return self.selection.done

    def proceed(self, steps: Iterable[tuple[TextSequence, Step]]) -> None:
        """Take the steps of a pass; add the answers that are needed now."""
        candidates = dict(zip(self.sequences, self.selection.candidates, strict=True))
        for sequence, step in steps:
            if sequence in candidates:
                candidates[sequence].steps.append(step)
        for sequence, candidate in candidates.items():
            if self.sequences[0].error is not None:
                sequence.end()
            candidate.ended = sequence.ended
        self.selection.proceed()
        self._add_drawn()

    def _add_drawn(self) -> None:
        first = self.sequences[0]
        for candidate in self.selection.candidates[len(self.sequences) :]:
            if self._resolved is None:
                settings = further(first.resolved.settings, first.resolved.profile.answers)
                self._resolved = settings.resolved(self._batch.model.config)
            self.sequences.append(
                self._batch.add(
                    TextSequence(
                        self._batch.model,
                        self._batch.tokenizer,
                        first.prompt,
                        self._resolved.with_seed(candidate.seed),
                        self._hooks,
                        cache=None if self._cache is None else caches.copy(self._cache),
                    )
                )
            )


def further(settings: Settings, rule: Any) -> Settings:
    """Return the settings of the answers behind the first one."""
    none_of_its_own = replace(
        settings, answers=1, temperature=rule.temperature, top_p=None, top_k=None, min_p=None
    )
    return find_sampler(FURTHER_SAMPLER).fitting(none_of_its_own)


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
    ) -> None:
        """Begin without answers; the arguments are those of `Batch`."""
        if cache is None and size > 1:
            cache = PromptCache(SHARED_BYTES)
        self.batch = Batch(model, tokenizer, size=size, cache=cache, pipelined=pipelined)
        self._several: dict[TextSequence, Several] = {}
        self._chosen: WeakKeyDictionary[TextSequence, AnswerSelection] = WeakKeyDictionary()
        """The answers to prompts of which one has been chosen, by the first of them."""
        """By the first sequence of each."""
        self._resolved: deque[tuple[Settings, ResolvedSettings]] = deque(maxlen=RESOLVED)

    def __enter__(self) -> Runner:
        self.batch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.batch.__exit__()

    def resolve(self, settings: Settings) -> ResolvedSettings:
        """Return settings as `Settings.resolved` does; those that decide alike share a sampler.

        Raises:
            ProfileError, SamplerError: the settings do not fit.
        """
        alike = replace(settings, **_NOT_DECIDING)
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
        *,
        answered: Sequence[Step] = (),
        forced: Sequence[int] = (),
        cache: list[Any] | None = None,
        scored: int | None = None,
    ) -> TextSequence:
        """Put an answer into the queue; the arguments are those of `Sequence`.

        Where the settings ask for several answers, the sequence is that of the first one; one that
        is continued, forced or scored is the only one.
        """
        model, tokenizer = self.batch.model, self.batch.tokenizer
        sequence = TextSequence(
            model,
            tokenizer,
            prompt,
            resolved,
            hooks,
            answered=answered,
            forced=forced,
            cache=cache,
            scored=scored,
        )
        self.batch.add(sequence)
        single = answered or forced or scored is not None
        if resolved.settings.answers != 1 and not single:
            self._several[sequence] = Several(sequence, self.batch)
        return sequence

    def selection(self, sequence: TextSequence) -> AnswerSelection | None:
        """Return all answers to the prompt of a first one; None where it is the only one."""
        several = self._several.get(sequence)
        return self._chosen.get(sequence) if several is None else several.selection

    def done(self, sequence: TextSequence) -> bool:
        """Tell whether no more steps come; behind the first of several, when one is chosen."""
        several = self._several.get(sequence)
        return sequence.ended and (several is None or several.done)

    def advance(self) -> list[tuple[TextSequence, Step]]:
        """Run one pass and return the steps that were committed.

        Of several answers to one prompt, those of the chosen one are returned, as steps of the
        first, when it is chosen.
        """
        steps = self._run_pass()
        hidden = {sequence for each in self._several.values() for sequence in each.sequences}
        shown = [(sequence, step) for sequence, step in steps if sequence not in hidden]
        for first, several in list(self._several.items()):
            if several.done:
                shown += [(first, step) for step in several.selection.chosen.steps]
                self._chosen[first] = several.selection
                del self._several[first]
        return shown

    def _run_pass(self) -> list[tuple[TextSequence, Step]]:
        steps = self.batch.step()
        for several in self._several.values():
            several.proceed(steps)
        return steps

    def stream_all(self, first: TextSequence) -> Generator[tuple[int, Step], None, None]:
        """Yield the steps of several answers as they come, each with the number of its answer.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits.
        """
        several = self._several[first]
        try:
            with self:
                while not several.done:
                    for sequence, step in self._run_pass():
                        yield several.sequences.index(sequence), step
                    first.ask()
        finally:
            shorten(first, taken=0)
        if first.error is not None:
            raise first.error

    def stream(self, first: TextSequence) -> Generator[Step, None, None]:
        """Yield the steps of the only answer, or of the one that was chosen of several.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits.
        """
        if first not in self._several:
            yield from self.batch.stream(first)
            return
        selection = self._several[first].selection
        for _ in self.stream_all(first):
            pass
        yield from selection.chosen.steps
