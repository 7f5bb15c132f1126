"""Arms: the settings that are compared; every question is answered by every arm."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import limits
from ...answer.hooks import Hooks
from ...api.answers_file import check_count, records
from ...api.prompt_file import PromptLine
from ...errors import PromptError, first_line
from ...profiles.fields import hint, overlaid
from ...profiles.profile import Profile
from ...records import parse_toml
from ...samplers.registry import find_sampler
from ...settings import BATCH, Settings
from .questions import Problem
from .records import PlannedAnswer

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...api.batch import Batch
    from ...models.base import LanguageModel
    from ...notes.notes import Notes

CHAT, PLAIN = "chat", "plain"
FORMS = (CHAT, PLAIN)
STOP = "\n"
"""The end of an answer, which is one line; so is a worked solution of GSM8K."""
TOGETHER = 512
"""Answers that are prepared at once: each takes a millisecond, and a run may have thousands."""
_FIELDS = {field.name for field in fields(Settings)} - {"changes", "seed"}

Changes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Arm:
    """Settings under a name."""

    name: str
    settings: Settings
    """Without a seed: that depends on the question, and is the same for all arms."""


def named_arm(text: str, base: Settings) -> Arm:
    """Return the arm of a text such as ``cold: branch.max_branches=0; temperature=0.5``.

    Raises:
        PromptError: it has no name, or a setting is none.
        EntropixError: the settings cannot be used.
    """
    name, colon, assignments = (part.strip() for part in text.partition(":"))
    if not colon or not name:
        raise PromptError(f"arm {text!r} has no name: write NAME: SETTING=VALUE; …")
    return Arm(name, changed(base, assignments, f"arm {name}"))


def changed(base: Settings, assignments: str, source: str) -> Settings:
    """Return settings with some of their fields, and fields of their profile, replaced.

    Args:
        base: the settings.
        assignments: lines of TOML with semicolons between them: ``sampler="min_p"; min_p=0.2`` or
            ``branch.width=3``.
        source: what messages call them.

    Raises:
        PromptError: one is no assignment, or of a field that does not exist.
        EntropixError: the settings cannot be used.
    """
    replaced: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for assignment in filter(None, map(str.strip, assignments.split(";"))):
        try:
            given = parse_toml(assignment)
        except ValueError as error:
            raise PromptError(
                f"{source}: {assignment!r} is not NAME=VALUE with a TOML value (a text needs"
                f" quotes): {first_line(error)}"
            ) from error
        # `answers` is a setting and a section of the profile.
        for name, value in given.items():
            if isinstance(value, dict):
                changes = overlaid(changes, {name: value})
            else:
                replaced[name] = value
    for name in replaced:
        if name not in _FIELDS:
            raise PromptError(f"{source}: no setting {name!r}; {hint(name, _FIELDS)}")
    Profile.load().replace(changes, source)  # a mistake in them names the source
    settings = replace(base, **replaced, changes=overlaid(base.changes, changes))
    settings.check()
    return settings


def arms_of(
    samplers: Sequence[str], temperatures: Sequence[float | None], base: Settings
) -> list[Arm]:
    """Return an arm for every sampler and temperature.

    A sampler with a profile of its own is written ``name:profile``. One that takes no temperature,
    such as greedy, has a single arm.

    Raises:
        EntropixError: a combination that cannot be used.
    """
    arms = []
    for named in samplers:
        sampler, colon, profile = named.partition(":")
        if colon and not profile:
            raise PromptError(f"{named!r} has no profile after its colon: add one, or drop it")
        takes = "temperature" in find_sampler(sampler).takes
        for temperature in temperatures if takes else (None,):
            settings = replace(
                base, sampler=sampler, profile=profile or base.profile, temperature=temperature
            )
            settings.check()
            name = named if temperature is None else f"{named} T={temperature:g}"
            arms.append(Arm(name, settings))
    return arms


def plan(
    problems: Sequence[Problem],
    arms: Sequence[Arm],
    model: str,
    form: str = PLAIN,
    seed: int = 0,
    seeds: int = 1,
) -> list[PlannedAnswer]:
    """Return all answers of a run by question, then by arm, then by seed, counted from `seed`.

    Raises:
        PromptError: they are too many.
    """
    check_count(len(problems) * len(arms) * seeds, limits.GRADED)
    return [
        PlannedAnswer(
            prompt=prompt_of(
                problem,
                form,
                line,
                replace(
                    arm.settings,
                    seed=seed_of(problem, seed + number),
                    stop=(*arm.settings.stop, STOP),
                ),
            ),
            sample=place * seeds + number,
            question=problem,
            arm=arm.name,
            seed_number=number,
            form=form,
            model=model,
        )
        for line, problem in enumerate(problems, 1)
        for place, arm in enumerate(arms)
        for number in range(seeds)
    ]


def seed_of(problem: Problem, seed: int) -> int:
    """Return the seed of an answer: all arms share it, and no two questions do.

    A draw depends on the seed and the position only. With one seed for all questions, the answers
    to all of them would be drawn with the same random numbers.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem.id}".encode()).digest()[:4], "big")


def prompt_of(problem: Problem, form: str, line: int, settings: Settings) -> PromptLine:
    """Return the prompt of a question: worked examples as earlier turns, or a text to continue."""
    if form == CHAT:
        messages = [
            {"role": role, "content": text}
            for example in problem.examples
            for role, text in zip(("user", "assistant"), example, strict=True)
        ]
        messages.append({"role": "user", "content": problem.text})
        return PromptLine(line, settings, messages=tuple(messages), id=problem.id)
    shown = [f"Question: {text}\nAnswer: {answer}\n\n" for text, answer in problem.examples]
    prompt = "".join(shown) + f"Question: {problem.text}\nAnswer:"
    return PromptLine(line, settings, prompt=prompt, id=problem.id)


def answers(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    planned: Sequence[PlannedAnswer],
    *,
    batch: int = BATCH,
    on_token: Callable[[], None] = lambda: None,
    notes: Notes | None = None,
    read_again: bool = False,
) -> Iterator[tuple[PlannedAnswer, dict[str, Any]]]:
    """Generate answers, and yield each with its record as it ends.

    Passages may be retrieved from the notes, and answers read again for the scores of `READ_AGAIN`.

    Raises:
        UnsupportedModelError: it cannot be read so.
    """
    from ...api.attention import previous_attention
    from ...api.batch import batch_generate

    begin = partial(batch_generate, model, tokenizer, batch=batch, steady=True)
    read = partial(previous_attention, model) if read_again else None
    for first in range(0, len(planned), TOGETHER):
        part = planned[first : first + TOGETHER]
        yield from _answers_together(begin, tokenizer, part, on_token, notes, read)


def _answers_together(
    begin: Callable[..., Batch],
    tokenizer: TokenizerWrapper,
    planned: Sequence[PlannedAnswer],
    on_token: Callable[[], None],
    notes: Notes | None,
    read: Callable[..., tuple[tuple[float, ...], ...]] | None,
) -> Iterator[tuple[PlannedAnswer, dict[str, Any]]]:
    prompts: dict[int, list[int]] = {}
    for one in planned:
        if one.prompt.line not in prompts:
            prompts[one.prompt.line] = one.prompt.tokens(tokenizer, bare=one.form == PLAIN)
    batch = begin(
        [prompts[one.prompt.line] for one in planned],
        [one.settings for one in planned],
        hooks=[Hooks(retrieve=notes.about(one.question.text)) for one in planned]
        if notes
        else None,
    )

    def read_again(index: int) -> None:
        answer, prompt = batch.answers[index], prompts[planned[index].prompt.line]
        if read is not None:
            answer.previous_attention = read(prompt, answer.steps)

    yield from records(batch, planned, on_token, read_again)
