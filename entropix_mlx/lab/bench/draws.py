"""Measure a sampler alone, from logits to a token, at several sizes of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mlx.core as mx

from ...samplers.base import Sampler
from ...samplers.draw import draw, uniforms
from ...samplers.position import measure
from ...samplers.registry import make_sampler
from .pair import PARAMETERS, SEED, chain
from .records import Effort, Figure
from .timing import in_turns, seconds, to_figures

SAMPLER = "sampler"
CHAIN = "mlx-lm's chain"
SAME = "same parameters"
ENTROPIX = "entropix sampler"
LOGIT_SCALE = 3.0
"""Standard deviation of the made-up logits."""
HEADS, KEYS = 32, 128
"""Shape of the made-up attention scores, which the entropix sampler measures."""

Draws = Callable[[mx.array], mx.array]
"""From logits `(1, vocab)` to a token `(1,)`."""


def measure_sampler(effort: Effort) -> list[Figure]:
    """Return the figures of all vocabularies, and of each top-k at the first of them."""
    top_k = int(PARAMETERS["top_k"])
    cases = [(vocabulary, top_k) for vocabulary in effort.vocabularies]
    cases += [(effort.vocabularies[0], k) for k in effort.candidates if k != top_k]
    return [figure for vocabulary, k in sorted(cases) for figure in _at(effort, vocabulary, k)]


def _at(effort: Effort, vocabulary: int, top_k: int) -> list[Figure]:
    logits = mx.random.normal((1, vocabulary), scale=LOGIT_SCALE, key=mx.random.key(SEED))
    mx.eval(logits)
    parameters = {**PARAMETERS, "top_k": top_k}
    contenders = {
        CHAIN: _theirs(parameters),
        SAME: _ours(make_sampler("top_p", given=parameters)),
        ENTROPIX: _ours(make_sampler("entropix", given=parameters)),
    }

    def microseconds(sampler: Draws) -> float:
        def run() -> None:
            for _ in range(effort.draws):
                mx.eval(sampler(logits))

        return 1e6 * seconds(run) / effort.draws

    for sampler in contenders.values():
        microseconds(sampler)  # a warm-up
    timed = {name: lambda s=s: microseconds(s) for name, s in contenders.items()}
    repeated = in_turns(timed, effort.draw_repeats)
    case = f"vocabulary {vocabulary:,}, top-k {top_k}"
    return to_figures(SAMPLER, case, "µs", repeated, (CHAIN,))


def _theirs(parameters: Mapping[str, float]) -> Draws:
    """Return what mlx-lm does between logits and a token."""
    sampler = chain(parameters)
    return lambda logits: sampler(logits - mx.logsumexp(logits, keepdims=True))


def _ours(sampler: Sampler) -> Draws:
    """Return what this package does: measure, plan and draw."""
    scores = mx.random.normal((1, HEADS, KEYS), key=mx.random.key(SEED))
    mx.eval(scores)

    def sample(logits: mx.array) -> mx.array:
        measured = measure(logits, [scores])
        randomness = mx.array([uniforms(SEED, 0, sampler.draws)])
        return draw(measured, sampler.planned(measured).plan, sampler, randomness)[0]

    return sample
