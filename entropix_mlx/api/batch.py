"""Many answers at once: they share the passes over the weights, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..answer.selection import AnswerChoice
from ..engine.runner import Runner
from ..engine.slot import Slot
from ..errors import EntropixError, whole_number
from ..models.base import LanguageModel
from ..profiles.confidence import AnswerMetrics, Verdict
from ..profiles.profile import Profile
from ..settings import BATCH, Settings
from ..step import Step
from .answers import Several
from .generate import parse_options, prompt_tokens

WAIT_SECONDS = 0.1
"""Between two checks whether answers that wait for a person were cancelled."""

OnProgress = Callable[[int, int], None]
"""Called with the answers that have ended and the number of all."""


def batch_generate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[str | Iterable[int]],
    settings: Settings | Sequence[Settings] | None = None,
    *,
    n: int = 1,
    batch: int = BATCH,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Batch:
    """Answer many prompts at once.

    An answer is the same as alone, up to rounding, which depends on what shares a pass with it.

        batch = batch_generate(model, tokenizer, prompts, max_tokens=100, seed=0)
        for index, step in batch:
            ...
        for answer in batch.answers:
            print(answer.text)

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompts: each as for `stream_generate`. Equal ones share what is cached of them.
        settings: for all, or one for each prompt.
        n: answers to each prompt; those of one prompt follow one another, and each has the seed
            that follows the one before. Where `answers` is not 1, each of them is the choice among
            several, and its steps come when it is chosen.
        batch: answers at once; fewer are run where the memory does not allow so many.
        on_progress: see `OnProgress`.
        **options: fields of `Settings`, which replace those of all `settings`; `hooks`, a `Hooks`
            for all or one for each prompt: while a person is asked (`choose`, which is called on
            another thread), the other answers go on; `draft_model`, a `DraftModel` for all;
            and `steady`: with True, running answers wait longer while a prompt is read, but on the
            same machine the same batch with the same seeds gives the same answers exactly.

    Returns:
        The batch: iterate over it, or call `finish`; one answer that fails has an `error`, and the
        others are not touched by it.

    Raises:
        TypeError: an option is unknown, or there are not as many settings or hooks as prompts.
        SettingsError, SamplerError: a value that cannot be used.
    """
    if isinstance(prompts, str):
        raise TypeError("prompts must be a list: put the one prompt into brackets")
    whole_number("n", n, least=1)
    whole_number("batch", batch, least=1)
    given = _one_each(settings, Settings, len(prompts), "settings")
    hooked = _one_each(options.pop("hooks", None), Hooks, len(prompts), "hooks")
    steady, draft = bool(options.pop("steady", False)), options.pop("draft_model", None)
    answers: list[BatchAnswer] = []
    slots: list[Slot | Several | None] = []
    runner = Runner(model, tokenizer, batch=batch, steady=steady)
    for prompt, own, hook in zip(prompts, given, hooked, strict=True):
        called = hook or Hooks()
        if draft is not None:
            called = replace(called, draft_model=draft)
        parsed, others = parse_options(own, options, ("hooks", "steady"))
        if others != Hooks():
            raise TypeError("callbacks of a batch are passed as hooks=Hooks(…)")
        one = prompt if isinstance(prompt, str) else list(prompt)
        for sample in range(n):
            answer = BatchAnswer(len(answers))
            answers.append(answer)
            seed = None if parsed.seed is None else parsed.seed + sample
            slots.append(_added(runner, tokenizer, answer, one, replace(parsed, seed=seed), called))
    return Batch(runner, answers, slots, on_progress)


def _added(
    runner: Runner,
    tokenizer: TokenizerWrapper,
    answer: BatchAnswer,
    prompt: str | Iterable[int],
    settings: Settings,
    hooks: Hooks,
) -> Slot | Several | None:
    """Return the slot of an answer, or several; None where it cannot be generated, and `error` says
    why."""
    try:
        tokens = prompt_tokens(tokenizer, prompt)
        answer.prompt_tokens = len(tokens)
        resolved = runner.resolve(settings)
        answer.settings = resolved.settings
        if resolved.settings.answers == 1:
            return runner.add(tokens, resolved, hooks)
        return Several(runner, tokens, resolved, hooks)
    except EntropixError as error:
        answer.error = error
        return None


@dataclass
class BatchAnswer:
    """One answer of a batch, as far as it has come."""

    index: int
    prompt_tokens: int = 0
    settings: Settings | None = None
    """Those of this answer, with its profile and seed; None where they could not be used."""
    steps: list[Step] = field(default_factory=list)
    error: Exception | None = None
    """What ended the answer, if it was not its own end."""
    choice: AnswerChoice | None = None
    """Where there are several answers to the prompt: all of them, of which this one was chosen."""

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

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


class Batch:
    """Answers that are generated together; iterate to get ``(index, step)`` as they come.

    A loop that is left may be taken up again, or `finish` called. `close` ends all answers where
    they are; one that had not come to its end has an `error` then.
    """

    def __init__(
        self,
        runner: Runner,
        answers: list[BatchAnswer],
        slots: Sequence[Slot | Several | None],
        on_progress: OnProgress | None,
    ) -> None:
        self.answers = answers
        """In the order of the prompts, each as far as it has come."""
        self._runner = runner
        self._on_progress = on_progress
        self._left: dict[Slot, BatchAnswer] = {}
        self._several: dict[int, Several] = {}
        """By the index of an answer: those among which it will be chosen."""
        for answer, slot in zip(answers, slots, strict=True):
            if isinstance(slot, Several):
                self._several[answer.index] = slot
                self._left |= dict.fromkeys(slot.slots, answer)
            elif slot is not None:
                self._left[slot] = answer
        alone = len(answers) - len(self._several)
        most = alone + sum(several.most for several in self._several.values())
        self.size = runner.capacity(self._left, most)
        """Answers that are run at once."""
        self._question: tuple[Slot, Future[int]] | None = None
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
                    committed = [(self._left[slot], slot, s) for slot, s in self._runner.advance()]
                    for answer, slot, step in committed:
                        self._add(answer, slot, step)
                    yield from (
                        (answer.index, step)
                        for answer, _, step in committed
                        if answer.index not in self._several
                    )
                    self._ask()
                    for answer in self._retire():
                        yield from ((answer.index, step) for step in answer.steps)
        finally:
            self._cut_off()

    def _add(self, answer: BatchAnswer, slot: Slot, step: Step) -> None:
        if answer.index in self._several:
            self._several[answer.index].add(slot, step)
        else:
            answer.steps.append(step)

    def _cut_off(self) -> None:
        for index, several in self._several.items():
            _choose(self.answers[index], several)
        self._several.clear()
        for answer in self._left.values():
            answer.error = EntropixError("the batch was closed before this answer was complete")
        self._left.clear()

    def _ask(self) -> None:
        """Have people asked, one after the other, and go on with what they chose."""
        asking = [
            slot for slot in self._left if slot.undecided is not None and slot.choose is not None
        ]
        if self._question is None and asking:
            self._question = asking[0], _asked(asking[0])
        if self._question is None:
            return
        slot, choice = self._question
        if len(asking) == self._runner.running:  # nothing else can be done meanwhile
            wait([choice], WAIT_SECONDS)
        if not choice.done():
            return
        self._question = None
        try:
            slot.reply(choice.result())  # nothing, if it was cancelled meanwhile
        except Exception as error:  # that answer's alone
            slot.end(error)

    def _retire(self) -> list[BatchAnswer]:
        """Note which slots have ended, and return the answers that were chosen now."""
        # 1. Where there are several answers, more are added, or some are ended.
        for index, several in self._several.items():
            self._left |= dict.fromkeys(several.proceed(), self.answers[index])
        # 2. What has ended leaves.
        for slot in [slot for slot in self._left if slot.ended]:
            answer = self._left.pop(slot)
            if answer.index not in self._several:
                answer.error = slot.error
                self._report()
        # 3. One of several is chosen when the last of them has ended.
        chosen = [self.answers[index] for index, each in self._several.items() if each.done]
        for answer in chosen:
            _choose(answer, self._several.pop(answer.index))
            self._report()
        return chosen

    def _report(self) -> None:
        if self._on_progress is not None:
            left = {answer.index for answer in self._left.values()}
            self._on_progress(len(self.answers) - len(left), len(self.answers))


def _choose(answer: BatchAnswer, several: Several) -> None:
    answer.choice, answer.steps = several.choice, list(several.steps)
    answer.error = several.first.error


def _asked(slot: Slot) -> Future[int]:
    """Ask a person on another thread, so that other answers go on; nobody joins it at the end."""
    choice: Future[int] = Future()
    choose, fork = slot.choose, slot.undecided

    def ask() -> None:
        try:
            if choose is not None and fork is not None:
                choice.set_result(choose(fork))
        except Exception as error:
            choice.set_exception(error)

    threading.Thread(target=ask, name="choose", daemon=True).start()
    return choice


def _one_each(given: Any, kind: type, count: int, name: str) -> list[Any]:
    if given is None or isinstance(given, kind):
        return [given] * count
    listed = list(given)
    if len(listed) != count or not all(isinstance(item, kind) for item in listed):
        raise TypeError(f"{name} must be one {kind.__name__}, or a list of {count}: one a prompt")
    return listed
