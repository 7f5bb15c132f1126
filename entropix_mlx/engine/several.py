"""Several answers to one prompt in a runner, of which one is chosen: `Settings.answers`.

    auto    prompt ─→ first answer ─→ gate ── sure ─→ chosen
                 │                      └─ unsure ─┐
                 └─ in the cache ─────────→ others, in one batch ─→ chosen
    8       prompt ─→ first answer and others, in one batch ─→ chosen

    8       prompt ─→ first answer ─→ others, which begin inside it ─→ others … ─→ chosen
    (tree)

The first answer is that of the settings: its tokens are those of a single answer. The others are
drawn at the temperature of the profile's section ``answers``, each from a seed that follows from
the first one's; penalties, biases, stop strings and retrieval are those of the settings. They share
what is cached of the prompt, which is computed once. Where they begin inside complete answers
(`branch.mode` of the profile; see `answer/tree.py`), they have the settings of the first one, and
share what is cached of that answer, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..answer.hooks import Hooks
from ..answer.selection import AnswerSelection
from ..profiles.sections import MODE_TEXT, AnswersRule
from ..samplers.registry import find_sampler
from ..settings import Settings
from ..step import Step
from .slot import Slot

FURTHER_SAMPLER = "temperature"


class Beginning(NamedTuple):
    """Where an answer begins inside another one."""

    slot: Slot
    """Of that other answer, which is complete."""
    steps: Sequence[Step]
    """What both share."""
    token: int
    """The first that they do not share."""


AddAnswer = Callable[[Settings, Hooks, Beginning | None], Slot]


class Several:
    """The slots of the answers to one prompt."""

    def __init__(self, first: Slot, add: AddAnswer) -> None:
        """Begin with the first answer; with a number in its setting `answers`, and without a tree,
        add all others.

        Args:
            first: it waits.
            add: adds another answer to the prompt to the runner.
        """
        rule, settings = first.resolved.profile.answers, first.resolved.settings
        forks = first.resolved.sampler.fork_rule
        self.selection = AnswerSelection(rule, settings.answers, first.resolved.seed, forks)
        self.slots = [first]
        self._add = add
        tree = forks.mode != MODE_TEXT
        self._settings = replace(settings, answers=1) if tree else further(settings, rule)
        hooks = replace(first.hooks, choose=None, on_fork=None, on_prefill=None)
        self._hooks = first.hooks if hooks == first.hooks else hooks
        first.selection = self.selection
        self._add_drawn()

    @property
    def first(self) -> Slot:
        return self.slots[0]

    def proceed(self, steps: Iterable[tuple[Slot, Step]]) -> None:
        """Take the steps of a turn of the runner; add the answers that are needed now, and end
        those that are not."""
        candidates = dict(zip(self.slots, self.selection.candidates, strict=True))
        for slot, step in steps:
            if slot in candidates:
                candidates[slot].add(step)
        for slot, candidate in candidates.items():
            if self.first.error is not None:
                slot.end()
            candidate.ended = slot.ended
        behind = self.selection.proceed()
        for slot, candidate in candidates.items():
            if candidate in behind:
                slot.end()
                candidate.ended = True
        self._add_drawn()

    def _add_drawn(self) -> None:
        for candidate in self.selection.candidates[len(self.slots) :]:
            settings, beginning = replace(self._settings, seed=candidate.seed), None
            if (leaf := candidate.leaf) is not None:
                most = max(-1, self._settings.max_tokens - leaf.place)
                settings = replace(settings, max_tokens=most)
                steps = tuple(candidate.steps)
                beginning = Beginning(self.slots[leaf.answer], steps, leaf.token)
            self.slots.append(self._add(settings, self._hooks, beginning))


def further(settings: Settings, rule: AnswersRule) -> Settings:
    """Return the settings of the answers behind the first one."""
    none_of_its_own = replace(
        settings, answers=1, temperature=rule.temperature, top_p=None, top_k=None, min_p=None
    )
    return find_sampler(FURTHER_SAMPLER).fitting(none_of_its_own)
