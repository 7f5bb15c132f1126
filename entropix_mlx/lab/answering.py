"""Many answers at once, with a journal by which a stopped measurement resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .. import limits
from ..api.prompts import conversation_prompt
from ..engine.prompt_cache import PromptCache
from ..engine.runner import Runner
from ..engine.slot import Slot
from ..errors import OutputError
from ..files import write_line, write_whole, writing
from ..models.base import LanguageModel
from ..samplers.base import Sampler
from ..settings import ResolvedSettings, Settings
from ..step import Step

AT_ONCE = 32
"""Answers that run together, where the memory allows so many. A pass reads all weights whatever
its width: on two cores a token of the demo model takes 23 ms of a processor among 8 slots, and 14
ms among 24."""
CACHE_BYTES = 2**28
"""The most memory for the texts of answers that have ended, for prompts that begin alike."""


@dataclass(frozen=True)
class Continuation:
    """An answer to generate, from its prompt or from a position within it."""

    prompt: list[int]
    """Tokens, those of `begun` included."""
    settings: ResolvedSettings
    begun: Sequence[Step] = ()
    """The steps that exist already."""
    forced: Sequence[int] = ()


@dataclass(frozen=True)
class Answered:
    """An answer to one question."""

    prompt: list[int]
    """Tokens, with those of the chat template."""
    seed: int
    steps: list[Step]
    question: str

    def tokens_before(self, place: int) -> list[int]:
        return [*self.prompt, *(step.token for step in self.steps[:place])]

    def continued(
        self,
        place: int,
        sampler: Sampler,
        tokens: int,
        seed: int | None = None,
        forced: Sequence[int] = (),
    ) -> Continuation:
        """Return a continuation that replaces the steps from a place on, by default with the
        answer's own seed.
        """
        seed = self.seed if seed is None else seed
        settings = ResolvedSettings(Settings(max_tokens=tokens, speculation="off"), sampler, seed)
        return Continuation(self.tokens_before(place), settings, self.steps[:place], forced)


class Journal:
    """Answers by stage and number, in a JSON Lines file by which a stopped measurement resumes.

    The first line states the subject of the measurement; each other line is one answer with its
    stage and number, written as soon as it is known. The journal also counts the progress.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        resume: bool = False,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Begin in memory; `open` opens the file.

        Args:
            path: the file, in a folder that exists; None for none.
            resume: continue a file that exists; otherwise it is written anew.
            on_progress: called with the number of answers so far, and of all that are planned.
        """
        self._path = path
        self._resume = resume
        self._on_progress = on_progress
        self._found: dict[tuple[str, int], list[Step]] = {}
        self._done = self._total = 0

    def open(self, subject: Any) -> None:
        """Open the file.

        Args:
            subject: of the measurement, JSON-ready; that of an existing file must be the same.

        Raises:
            OutputError: the file cannot be read or written, is damaged, or measures something else.
        """
        if self._path is None:
            return
        lines: list[bytes] = []
        if self._resume and os.path.exists(self._path):
            read = limits.read_lines(self._path, limits.ANSWERS_BYTES, OutputError)
            lines = [line for _, line in read]
        if lines:
            self._found = self._answers(lines, subject)
        with writing(self._path, OutputError):
            write_whole(self._path, b"".join(lines).decode("utf-8") or f"{json.dumps(subject)}\n")

    def get(self, stage: str, number: int) -> list[Step] | None:
        return self._found.get((stage, number))

    def add(self, stage: str, number: int, steps: list[Step]) -> None:
        self._found[stage, number] = steps
        if self._path is not None:
            with writing(self._path, OutputError), FileIO(self._path, "a") as file:
                write_line(file, json.dumps([stage, number, [step.to_dict() for step in steps]]))

    def expect(self, more: int) -> None:
        self._total += more
        self._on_progress(self._done, self._total)

    def advance(self, by: int = 1) -> None:
        self._done += by
        self._total = max(self._total, self._done)
        self._on_progress(self._done, self._total)

    def remove(self) -> None:
        if self._path is not None:
            with writing(self._path, OutputError):
                self._path.unlink(missing_ok=True)

    def _answers(self, lines: list[bytes], subject: Any) -> dict[tuple[str, int], list[Step]]:
        try:
            first, *rest = [json.loads(line.decode("utf-8")) for line in lines]
            found = {
                (str(stage), int(number)): [Step.from_dict(dict(record)) for record in records]
                for stage, number, records in rest
            }
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise OutputError(
                f"{self._path} is damaged: start again without --resume ({error})"
            ) from error
        if first != json.loads(json.dumps(subject)):
            raise OutputError(
                f"{self._path} is of another calibration (model, prompts, seed or tokens differ):"
                " start again without --resume, or choose another --output"
            )
        return found


@dataclass
class Answerer:
    """Generates many answers at once; those in the journal are not generated again."""

    model: LanguageModel
    tokenizer: TokenizerWrapper
    seed: int
    """Of the first answer; the others count on."""
    journal: Journal

    def answers(
        self, stage: str, prompts: Sequence[str], tokens: int, *, first: int = 0, **options: Any
    ) -> list[Answered]:
        """Return the answers to some prompts; `first` is added to the seed of the first one.

        The journal finds them by their stage and number. The options are those of `Settings`.
        """
        settings = Settings(
            max_tokens=tokens, seed=self.seed + first, top_logprobs=1, speculation="off", **options
        ).resolved(self.model.config)
        planned = [
            Continuation(
                conversation_prompt(self.tokenizer, [{"role": "user", "content": prompt}]),
                settings.with_seed(self.seed + first + number),
            )
            for number, prompt in enumerate(prompts)
        ]
        return [
            Answered(one.prompt, one.settings.seed, steps, prompt)
            for one, steps, prompt in zip(planned, self.run(stage, planned), prompts, strict=True)
        ]

    def run(self, stage: str, planned: Sequence[Continuation]) -> list[list[Step]]:
        known = {number: self.journal.get(stage, number) for number in range(len(planned))}
        steps = {number: found for number, found in known.items() if found is not None}
        self.journal.advance(len(steps))
        missing = [number for number in range(len(planned)) if number not in steps]

        def record(place: int, found: list[Step]) -> None:
            number = missing[place]
            steps[number] = found
            self.journal.add(stage, number, found)
            self.journal.advance()

        run_answers(self.model, self.tokenizer, [planned[number] for number in missing], record)
        return [steps[number] for number in range(len(planned))]


def run_answers(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    planned: Sequence[Continuation],
    on_done: Callable[[int, list[Step]], None],
) -> None:
    """Generate answers in the same passes; common prefixes of their prompts are computed once.

    Similar prompts follow one another, in an order that depends on the prompts alone. `on_done` is
    called with the number and the steps of every answer that is complete.
    """
    cache = PromptCache(CACHE_BYTES)
    steps: dict[Slot, tuple[int, list[Step]]] = {}
    with Runner(model, tokenizer, batch=AT_ONCE, cache=cache, steady=True) as runner:
        for number in sorted(range(len(planned)), key=lambda number: planned[number].prompt):
            one = planned[number]
            slot = runner.add(one.prompt, one.settings, answered=one.begun, forced=one.forced)
            steps[slot] = number, []
        while steps:
            for slot, step in runner.advance():
                steps[slot][1].append(step)
            for slot in [slot for slot in steps if slot.done]:
                if slot.error is not None:
                    raise slot.error
                on_done(*steps.pop(slot))
