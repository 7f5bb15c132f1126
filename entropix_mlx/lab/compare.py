"""Compare samplers: each answers one prompt several times, and its answers are summed up.

No score here says which sampler is better. Probability under the model, repetition and variety
contradict one another; the reader has to weigh them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import check_type, whole_number
from ..settings import Settings
from ..step import Step
from ..summary import Summary

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.llama import Model

REPETITION_LENGTH = 4
"""So many tokens in a row are a repetition if the same answer has them already."""

Watch = Callable[[Settings, Iterator[Step]], Iterable[Step]]
"""Called with the resolved settings of an answer and its steps; passes the steps on, and may record
them."""


@dataclass(frozen=True)
class Sample:
    """One answer of one sampler."""

    sampler: str
    seed: int
    steps: tuple[Step, ...]

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(step.text for step in self.steps)


@dataclass(frozen=True)
class Result:
    """What the answers of one sampler amount to; means are over the tokens of all of them."""

    sampler: str
    answers: int
    distinct_texts: int
    tokens: int
    """Generated in all; the means count inserted tokens and ends of text too."""
    mean_logprob: float
    """Natural log probability a token, under the model at temperature 1."""
    perplexity: float
    """exp(−mean_logprob)."""
    repetition: float
    """Share of the runs of `REPETITION_LENGTH` tokens that the same answer had already."""
    tokens_per_second: float
    """Without the prefill; 0 if no answer has two tokens."""
    insertions: int
    branches: int


def generate_samples(
    model: Model,
    tokenizer: TokenizerWrapper,
    prompt: list[int],
    settings: Sequence[Settings],
    seeds: Sequence[int],
    watch: Watch | None = None,
) -> Iterator[Sample]:
    """Generate an answer with each of the settings and each of the seeds, one after the other.

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
    from ..decoding.generation import stream_generate

    for each in settings:
        check_type("settings", each, Settings)
    seeds = [whole_number("seeds", seed) for seed in seeds]
    for each in settings:
        resolved = each.resolved(model.config)
        for seed in seeds:
            seeded = replace(resolved, seed=seed)
            stream = stream_generate(model, tokenizer, prompt, seeded)
            steps = watch(seeded, stream) if watch else stream
            yield Sample(each.sampler, seed, tuple(steps))


def summarize(samples: Iterable[Sample]) -> list[Result]:
    """Return one result for each sampler, in the order of their first samples."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.sampler, []).append(sample)
    return [_result(sampler, group) for sampler, group in groups.items()]


def _result(sampler: str, group: list[Sample]) -> Result:
    steps = [step for sample in group for step in sample.steps]
    summaries = [Summary.of(sample.steps) for sample in group]
    mean_logprob = sum(step.logprob for step in steps) / max(1, len(steps))
    return Result(
        sampler=sampler,
        answers=len(group),
        distinct_texts=len({sample.text for sample in group}),
        tokens=len(steps),
        mean_logprob=mean_logprob,
        perplexity=math.exp(-mean_logprob),
        repetition=repetition([[step.token for step in sample.steps] for sample in group]),
        tokens_per_second=_speed(summaries),
        insertions=sum(summary.insertions for summary in summaries),
        branches=sum(summary.branches for summary in summaries),
    )


def repetition(texts: Iterable[Sequence[int]], length: int = REPETITION_LENGTH) -> float:
    """Return the share of the runs of tokens that the same text had already; 0 without any run.

    Args:
        texts: the token ids of each; no run reaches from one text into the next.
        length: tokens in a run.
    """
    total = repeated = 0
    for tokens in texts:
        runs = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
        total += len(runs)
        repeated += len(runs) - len(set(runs))
    return repeated / total if total else 0.0


def _speed(summaries: list[Summary]) -> float:
    elapsed = sum(summary.decoding_time for summary in summaries)
    return sum(summary.decoded_tokens for summary in summaries) / elapsed if elapsed else 0.0
