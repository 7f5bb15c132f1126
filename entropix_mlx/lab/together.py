"""Many answers in the same passes; what their prompts have in common is computed once.

A pass reads all weights whatever the number of its rows, so more rows cost less each: on two cores
a token of the demo model takes 23 ms of a processor among 8 rows, and 14 ms among 24.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.prompt_cache import PromptCache
from ..engine.runner import Runner
from ..engine.slot import Slot
from ..models.base import LanguageModel
from ..settings import ResolvedSettings
from ..step import Step

ROWS = 32
"""Answers that run at once, where the memory allows so many."""
CACHE_BYTES = 2**28
"""What the texts of answers that have ended may take, for prompts that begin alike."""

OnDone = Callable[[int, list[Step]], None]
"""Called with the number of an answer that is complete, and its steps."""


@dataclass(frozen=True)
class Task:
    """An answer to generate, with a limit of tokens."""

    prompt: Sequence[int]
    settings: ResolvedSettings
    answered: Sequence[Step] = ()
    """The steps of an answer that is continued; the prompt ends with their tokens."""
    forced: Sequence[int] = ()
    """Tokens to commit first."""


def answer_all(
    model: LanguageModel, tokenizer: TokenizerWrapper, tasks: Sequence[Task], on_done: OnDone
) -> None:
    """Run some answers; report every one as soon as it is complete.

    Those with similar prompts follow one another, in an order that depends on the prompts alone.
    """
    cache = PromptCache(CACHE_BYTES)
    runner = Runner(model, tokenizer, batch=ROWS, cache=cache, steady=True)
    steps: dict[Slot, tuple[int, list[Step]]] = {}
    with runner:
        for number in sorted(range(len(tasks)), key=lambda number: tuple(tasks[number].prompt)):
            task = tasks[number]
            slot = runner.add(
                task.prompt, task.settings, answered=task.answered, forced=task.forced
            )
            steps[slot] = number, []
        while steps:
            for slot, step in runner.advance():
                steps[slot][1].append(step)
            for slot in [slot for slot in steps if slot.ended]:
                if slot.error is not None:
                    raise slot.error
                on_done(*steps.pop(slot))
