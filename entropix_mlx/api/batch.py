"""Many answers at once: they share the passes over the weights, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..answer.selection import AnswerSelection
from ..engine.sequence import Sequence as TextSequence
from ..errors import EntropixError, whole_number
from ..models.base import LanguageModel
from ..profiles.confidence import AnswerMetrics, Verdict
from ..profiles.profile import Profile
from ..settings import BATCH, Options, Settings
from ..step import Step
from ..summary import Summary
from .generate import prompt_tokens, with_options
from .runner import Runner

OnProgress = Callable[[int, int], None]
"""Called with the answers that have ended and the number of all."""


def batch_generate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[str | Iterable[int]],
    settings: Settings | Sequence[Settings] | None = None,
    *,
    hooks: Hooks | Sequence[Hooks] | None = None,
    n: int = 1,
    batch: int = BATCH,
    on_progress: OnProgress | None = None,
    **options: Unpack[Options],
) -> AnswerBatch:
    """Answer many prompts at once.

    An answer is the same as alone, up to rounding, which depends on what shares a pass with it.

        batch = batch_generate(model, tokenizer, prompts, max_tokens=100, seed=0)
        for index, step in batch:
            ...
        for answer in batch.answers:
            print(answer.text)

    Args:
        model, tokenizer: from `load`.
        prompts: each as for `stream_generate`. What they have in common at their beginning is
            computed once.
        settings: for all, or one for each prompt.
        hooks: for all, or one for each prompt. All answers wait while `choose` runs.
        n: answers to each prompt; those of one prompt follow one another, and each has the seed
            that follows the one before. Where `answers` is not 1, each is chosen of several, and
            its steps come when it is chosen.
        batch: answers at once; fewer are run where the memory does not allow so many.
        on_progress: see `OnProgress`.
        **options: fields of `Settings`, which replace those of all `settings`.

    Returns:
        The batch: iterate over it, or call `finish`. An answer that fails has an `error`; the
        others are not affected.

    Raises:
        TypeError: an option is unknown, or there are not as many settings or hooks as prompts.
        SettingsError, SamplerError: a value that cannot be used.
    """
    if isinstance(prompts, str):
        raise TypeError("prompts must be a list: put the one prompt into brackets")
    whole_number("n", n, least=1)
    whole_number("batch", batch, least=1)
    given = _one_each(settings, Settings, len(prompts), "settings")
    hooked = _one_each(hooks, Hooks, len(prompts), "hooks")
    runner = Runner(model, tokenizer, size=batch, ranked=True)
    answers: list[BatchAnswer] = []
    for prompt, own, hook in zip(prompts, given, hooked, strict=True):
        chosen = with_options(own, options)
        text = prompt if isinstance(prompt, str) else list(prompt)
        for sample in range(n):
            seed = None if chosen.seed is None else chosen.seed + sample
            answers.append(BatchAnswer(len(answers)))
            answers[-1].begin(runner, text, replace(chosen, seed=seed), hook)
    return AnswerBatch(runner, answers, on_progress)


def _one_each(given: Any, kind: type, count: int, name: str) -> list[Any]:
    if given is None or isinstance(given, kind):
        return [given] * count
    listed = list(given)
    if len(listed) != count or not all(isinstance(item, kind) for item in listed):
        raise TypeError(f"{name} must be one {kind.__name__}, or a list of {count}: one a prompt")
    return listed


@dataclass
class BatchAnswer:
    """One answer of a batch, as far as it has come."""

    index: int
    prompt_tokens: int = 0
    settings: Settings | None = None
    """Those of this answer, with its profile and seed; None where they could not be used."""
    steps: list[Step] = field(default_factory=list)
    error: Exception | None = None  # what ended the answer, if it was not its own end
    several: AnswerSelection | None = None
    """Where `answers` is not 1: all answers to the prompt, of which this one was chosen."""
    sequence: TextSequence | None = None
    """What generates it; None where it cannot be generated, or has ended."""

    def __repr__(self) -> str:
        return f"<BatchAnswer {self.index}: {self.text!r}>"

    def begin(
        self, runner: Runner, prompt: str | Iterable[int], settings: Settings, hooks: Hooks | None
    ) -> None:
        """Put the answer into the runner's queue, or set its `error`."""
        try:
            tokens = prompt_tokens(runner.batch.tokenizer, prompt)
            self.prompt_tokens = len(tokens)
            resolved = runner.resolve(settings)
            self.settings = resolved.settings
            self.sequence = runner.add(tokens, resolved, hooks)
            self.several = runner.selection(self.sequence)
        except EntropixError as error:
            self.error = error

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    def _repr_html_(self) -> str:
        return Summary.of(self.steps, self.prompt_tokens)._repr_html_()

    @property
    def seed(self) -> int | None:
        return None if self.settings is None else self.settings.seed

    @property
    def certainty(self) -> Verdict | None:
        """Whether the answer is unsure; None where its profile has no threshold (`Settings`)."""
        if self.settings is None:
            return None
        rule = Profile.load(self.settings.profile).abstain
        return rule.verdict(AnswerMetrics.of(self.steps))


class AnswerBatch:
    """Answers that are generated together; iterate to get ``(index, step)`` as they come.

    You may leave a loop and begin another one, or call `finish`. `close` ends all answers where
    they are; one that is not complete has an `error` then.
    """

    def __init__(
        self, runner: Runner, answers: list[BatchAnswer], on_progress: OnProgress | None
    ) -> None:
        self.answers = answers  # in the order of the prompts, each as far as it has come
        self._runner = runner
        self._on_progress = on_progress
        self._left = {one.sequence: one for one in answers if one.sequence is not None}
        self.size = runner.batch.capacity(self._left)  # answers that are run at once
        self._steps = self._run()

    def finish(self) -> list[BatchAnswer]:
        for _ in self:
            pass
        return self.answers

    def close(self) -> None:
        self._steps.close()
        self._cut_off()

    def __iter__(self) -> Iterator[tuple[int, Step]]:
        return self._steps

    def _run(self) -> Generator[tuple[int, Step], None, None]:
        try:
            with self._runner:
                if not self._left:
                    self._report()
                self._retire()
                while self._left:
                    committed = [
                        (self._left[sequence], s) for sequence, s in self._runner.advance()
                    ]
                    for answer, step in committed:
                        answer.steps.append(step)
                    yield from ((answer.index, step) for answer, step in committed)
                    self._ask()
                    self._retire()
        finally:
            self._cut_off()

    def _cut_off(self) -> None:
        for answer in self._left.values():
            if answer.several is not None:
                answer.steps = list(answer.several.chosen.steps)
            if not (answer.steps and answer.steps[-1].finish_reason):
                answer.error = EntropixError("the batch was closed before this answer was complete")
        self._left.clear()

    def _ask(self) -> None:
        """Ask the callers' functions for branches, where one is to be chosen."""
        for sequence in self._left:
            try:
                sequence.ask()
            except Exception as error:  # that answer's alone
                sequence.end(error)

    def _retire(self) -> None:
        for sequence in [sequence for sequence in self._left if self._runner.done(sequence)]:
            answer = self._left.pop(sequence)
            answer.error, answer.sequence = sequence.error, None
            self._report()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(len(self.answers) - len(self._left), len(self.answers))
