"""Compare samplers: each answers one prompt several times, and its answers are summed up.

No score here says which sampler is better. Probability under the model, repetition and variety
contradict one another; the reader has to weigh them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import check_type, whole_number
from ..settings import Settings
from ..step import Step
from ..summary import Sample

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel

Watch = Callable[[Settings, Iterator[Step]], Iterable[Step]]
"""Called with the resolved settings of an answer and its steps; passes the steps on one by one, and
may record them."""


def generate_samples(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: list[int],
    settings: Sequence[Settings],
    seeds: Sequence[int],
    watch: Watch | None = None,
) -> Iterator[Sample]:
    """Generate an answer with each of the settings and each of the seeds.

    The answers of one sampler are generated together, up to `BATCH` at once, and one sampler after
    the other, so that their speeds can be compared.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompt: token ids, such as `chat_prompt` returns.
        settings: one a sampler; their own seeds do not matter.
        seeds: the same for every sampler.
        watch: see `Watch`.

    Raises:
        EntropixError: one of its kinds, as `stream_generate` does.
    """
    for each in settings:
        check_type("settings", each, Settings)
    seeds = [whole_number("seeds", seed) for seed in seeds]
    for each in settings:
        resolved = each.resolved(model.config).settings
        seeded = [replace(resolved, seed=seed) for seed in seeds]
        yield from _together(model, tokenizer, prompt, seeded, watch)


def _together(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: list[int],
    settings: Sequence[Settings],
    watch: Watch | None,
) -> Iterator[Sample]:
    """Generate one answer with each of some settings at once; yield them in order."""
    from ..api.batch import batch_generate

    batch = batch_generate(model, tokenizer, [prompt] * len(settings), settings, steady=True)
    growing = [_Growing(each, watch or (lambda each, steps: steps)) for each in settings]
    first = 0
    with contextlib.ExitStack() as stack:
        for sample in growing:
            stack.callback(sample.close)
        for index, step in batch:
            growing[index].add(step)
            while first < len(growing) and growing[first].ended:
                yield growing[first].sample()
                first += 1
        for sample, answer in zip(growing[first:], batch.answers[first:], strict=True):
            if answer.error is not None:
                raise answer.error
            yield sample.sample()


class _Growing:
    """One answer of a batch, whose steps go through a watcher as they come."""

    def __init__(self, settings: Settings, watch: Watch) -> None:
        self.ended = False
        self._settings = settings
        self._watch = watch
        self._new: deque[Step] = deque()
        self._watched: Iterator[Step] | None = None
        self._steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Pass a step through the watcher."""
        self._new.append(step)
        self._steps.append(next(self._begun()))
        self.ended = step.finish_reason is not None

    def sample(self) -> Sample:
        """Let the watcher come to its end, and return the answer."""
        self.ended = True
        self._steps += self._begun()
        return Sample(self._settings.sampler, self._settings.seed or 0, tuple(self._steps))

    def close(self) -> None:
        """Tell a watcher that is a generator that no more steps come."""
        if isinstance(self._watched, Generator):
            self._watched.close()

    def _begun(self) -> Iterator[Step]:
        if self._watched is None:
            self._watched = iter(self._watch(self._settings, self._feed()))
        return self._watched

    def _feed(self) -> Iterator[Step]:
        while self._new or not self.ended:
            yield self._new.popleft()
