"""Comparing samplers: several answers of each to one prompt, and what they amount to.

No score here says which sampler is better: probability under the model, repetition and variety pull
apart, and a reader weighs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..settings import Settings
from ..step import Step
from ..summary import Summary

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.llama import Model

REPETITION_LENGTH = 4
"""Tokens in a row that count as a repetition when they have stood in the same answer before."""

Watch = Callable[[Settings, Iterator[Step]], Iterable[Step]]
"""Called with the resolved settings of an answer and its steps; passes the steps on, and may record
them."""


@dataclass(frozen=True)
class Answer:
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
    """Generated in all, inserted ones and ends of text among them; every mean counts them all."""
    mean_logprob: float
    """Natural log probability a token, under the model at temperature 1."""
    perplexity: float
    """exp(−mean_logprob)."""
    repetition: float
    """Share of the runs of `REPETITION_LENGTH` tokens that stood in the same answer before."""
    tokens_per_second: float
    """Prefill left out; 0 if no answer has two tokens."""
    insertions: int
    branches: int


def answers(
    model: Model,
    tokenizer: TokenizerWrapper,
    prompt: list[int],
    settings: Sequence[Settings],
    seeds: Sequence[int],
    watch: Watch | None = None,
) -> Iterator[Answer]:
    """Generate an answer with each of some settings and each of some seeds, one after the other.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompt: token ids, such as `chat_prompt` returns.
        settings: one a sampler; their own seeds do not matter.
        seeds: the same for every sampler.
        watch: sees each answer while it is generated.

    Raises:
        EntropixError: one of its kinds, as `stream_generate` does.
    """
    from ..decoding.generation import stream_generate

    for each in settings:
        resolved = each.resolved(model.config)
        for seed in seeds:
            seeded = replace(resolved, seed=seed)
            stream = stream_generate(model, tokenizer, prompt, seeded)
            steps = watch(seeded, stream) if watch else stream
            yield Answer(each.sampler, seed, tuple(steps))


def summarize(found: Iterable[Answer]) -> list[Result]:
    """Return a result a sampler, in the order of their first answers."""
    groups: dict[str, list[Answer]] = {}
    for answer in found:
        groups.setdefault(answer.sampler, []).append(answer)
    return [_result(sampler, group) for sampler, group in groups.items()]


def _result(sampler: str, group: list[Answer]) -> Result:
    steps = [step for answer in group for step in answer.steps]
    summaries = [Summary.of(answer.steps) for answer in group]
    mean_logprob = sum(step.logprob for step in steps) / max(1, len(steps))
    return Result(
        sampler=sampler,
        answers=len(group),
        distinct_texts=len({answer.text for answer in group}),
        tokens=len(steps),
        mean_logprob=mean_logprob,
        perplexity=math.exp(-mean_logprob),
        repetition=repetition([[step.token for step in answer.steps] for answer in group]),
        tokens_per_second=_speed(summaries),
        insertions=sum(summary.insertions for summary in summaries),
        branches=sum(summary.branches for summary in summaries),
    )


def repetition(texts: Iterable[Sequence[int]], length: int = REPETITION_LENGTH) -> float:
    """Return the share of runs of tokens that stood before in the same text; 0 if there are none.

    Args:
        texts: token ids; runs do not reach from one text into the next.
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
