"""Several answers to one question, of which one is chosen: ``answers="auto"`` or a number.

    auto    prompt ─→ first answer ─→ gate ── sure ─→ it is the choice
                 │                      └─ unsure ─┐
                 └─ in the cache ─────────→ others, in one batch ─→ choice
    8       prompt ─→ first answer and others, in one batch ─→ choice

The first answer is that of the settings: its tokens are those of a single answer. The others are
drawn at the temperature of the profile's section ``answers``, each from a seed of its own that
follows from the first one's; penalties, biases, stop strings and retrieval are those of the
settings. All go through one `Runner`, where they share what is cached of the prompt, which is
computed once. After each turn, `answer/selection.py` says which others are needed, and which cannot
be chosen any more; those end where they are. A choice can be made at any moment, also behind an
interrupt: complete answers are what it is made among, and all texts stay as far as they came.

Who needs them: `stream_answers` (one question, as they come), `Batch` (many, each when it is
chosen) and `Session` (they become answers of the turn).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..answer.selection import AnswerChoice, AnswerSelection, Candidate, most_answers
from ..engine.cached_text import CachedText
from ..engine.runner import Runner
from ..engine.slot import Slot
from ..models.base import LanguageModel
from ..profiles.sections import AnswersRule
from ..samplers.registry import find_sampler
from ..settings import ResolvedSettings, Settings
from ..step import Step
from .generate import parse_options, prompt_tokens

FURTHER_SAMPLER = "temperature"


class Several:
    """The answers to one prompt, and the choice among them.

    Iterate to get ``(number, step)`` as they come; a loop that is left has its answers where they
    are. Who runs other answers beside these calls `add` with each step and `proceed` after each
    `Runner.advance` instead.
    """

    def __init__(
        self,
        runner: Runner,
        prompt: Sequence[int],
        resolved: ResolvedSettings,
        hooks: Hooks,
        text: CachedText | None = None,
    ) -> None:
        """Add the first answer, and with a number in `answers` all of them.

        Args:
            runner: it has room for as many answers as possible.
            prompt, text: as for `Runner.add`.
            resolved: its seed is that of the first answer.
            hooks: `choose`, `on_fork` and `on_prefill` are called for the first answer only.
        """
        settings, rule = resolved.settings, resolved.profile.answers
        self.selection = AnswerSelection(rule, settings.answers, resolved.seed)
        self._runner = runner
        self._prompt, self._text = prompt, text
        self._further = runner.resolve(further(settings, rule))
        self._hooks = replace(hooks, choose=None, on_fork=None, on_prefill=None)
        first = replace(resolved, settings=replace(settings, answers=1))
        self.slots = [runner.add(prompt, first, hooks, text=text)]
        self._stream = self._run()
        self._add_drawn()

    @property
    def first(self) -> Slot:
        return self.slots[0]

    @property
    def most(self) -> int:
        """Answers that may be drawn."""
        return self.selection.most

    @property
    def candidates(self) -> list[Candidate]:
        return self.selection.candidates

    @property
    def choice(self) -> AnswerChoice:
        """Which answer is taken, of those that are complete by now."""
        return self.selection.choice()

    @property
    def steps(self) -> list[Step]:
        """Those of the chosen answer."""
        return self.candidates[self.choice.chosen].steps

    @property
    def done(self) -> bool:
        return self.selection.done

    def add(self, slot: Slot, step: Step) -> int:
        """Note a step, and return the number of its answer."""
        number = self.slots.index(slot)
        self.candidates[number].add(step)
        return number

    def proceed(self) -> list[Slot]:
        """Add the answers that are needed now, and return them; end those that are not."""
        for slot, candidate in zip(self.slots, self.candidates, strict=True):
            if self.first.error is not None:
                slot.end()
            candidate.ended = slot.ended
        for number in self.selection.proceed():
            self.slots[number].end()
            self.candidates[number].ended = True
        return self._add_drawn()

    def finish(self) -> AnswerChoice:
        for _ in self:
            pass
        return self.choice

    def close(self) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[tuple[int, Step]]:
        return self._stream

    def _run(self) -> Generator[tuple[int, Step], None, None]:
        with self._runner:
            while not self.done:
                found = self._runner.advance()
                yield from [(self.add(slot, step), step) for slot, step in found]
                if self.first.undecided is not None and self.first.choose is not None:
                    self.first.reply(self.first.choose(self.first.undecided))
                self.proceed()
        if self.first.error is not None:
            raise self.first.error

    def _add_drawn(self) -> list[Slot]:
        added = [
            self._runner.add(
                self._prompt,
                self._further.with_seed(candidate.seed),
                self._hooks,
                text=self._text,
                beside=self.first,
            )
            for candidate in self.candidates[len(self.slots) :]
        ]
        self.slots += added
        return added


def further(settings: Settings, rule: AnswersRule) -> Settings:
    """Return the settings of the answers behind the first one."""
    none_of_its_own = replace(
        settings, answers=1, temperature=rule.temperature, top_p=None, top_k=None, min_p=None
    )
    return find_sampler(FURTHER_SAMPLER).fitting(none_of_its_own)


def stream_answers(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Iterable[int],
    settings: Settings | None = None,
    *,
    prompt_cache: list[Any] | None = None,
    **options: Any,
) -> Several:
    """Answer a prompt once or several times, as its setting `answers` says, and choose an answer.

        stream = stream_answers(model, tokenizer, prompt, answers="auto")
        for number, step in stream:  # the first answer, number 0, comes first
            ...
        print(stream.choice.text, stream.choice)

    Takes the arguments of `stream_generate`; a `prompt_cache` holds the prompt afterwards.

    Raises:
        EntropixError: one of its kinds, saying what is wrong and what to do.
        TypeError: an option is unknown, or a value that a program passed is of a wrong type.
    """
    settings, hooks = parse_options(settings, options, ("prompt_cache",))
    tokens = prompt_tokens(tokenizer, prompt)
    resolved = settings.resolved(model.config)
    text = None if prompt_cache is None else CachedText(model.take_cache(prompt_cache))
    return several_answers(model, tokenizer, tokens, resolved, hooks, text)


def several_answers(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    resolved: ResolvedSettings,
    hooks: Hooks,
    text: CachedText | None = None,
) -> Several:
    """Return the answers to one question, in a runner of their own, where they all run at once."""
    most = most_answers(resolved.profile.answers, resolved.settings.answers)
    return Several(Runner(model, tokenizer, batch=most), prompt, resolved, hooks, text)
