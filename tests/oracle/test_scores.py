"""Scores of answers, against float64 NumPy from the logits of the whole text."""

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import stream_generate
from entropix_mlx.profiles.confidence import GROUP, SCORES
from entropix_mlx.summary import Summary

PROMPT = [1, 2, 3, 4]
OFF = {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}
"""Without interventions, the logits of the text are those of its positions."""


def means_in_a_row(values, length):
    length = min(length, len(values))
    return np.convolve(values, np.ones(length) / length, mode="valid")


def exact(logits, tokens):
    """Return the scores by their definitions; `logits` are those before each token."""
    z = logits.astype(np.float64)
    logs = z - z.max(axis=-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=-1, keepdims=True))
    p = np.exp(logs)
    entropy = -(p * logs).sum(axis=-1) / np.log(2)
    varentropy = (p * (-logs / np.log(2) - entropy[:, None]) ** 2).sum(axis=-1)
    drawn = logs[np.arange(len(tokens)), tokens]
    ordered = np.sort(p, axis=-1)[:, ::-1]
    margin = ordered[:, 0] - ordered[:, 1]
    return {
        "mean_logprob": drawn.mean(),
        "lowest_logprob": means_in_a_row(drawn, GROUP).min(),
        "min_margin": margin.min(),
        "mean_entropy": entropy.mean(),
        "max_entropy": entropy.max(),
        "mean_varentropy": varentropy.mean(),
    }


@pytest.mark.parametrize("sampler", ["entropix", "greedy", "min_p"])
def test_scores_are_as_defined(sampler, tiny_model, byte_tokenizer):
    options = {"sampler": sampler, "max_tokens": 40, "seed": 3}
    steps = list(stream_generate(tiny_model, byte_tokenizer, PROMPT, changes=OFF, **options))
    tokens = [step.token for step in steps]
    text = mx.array([PROMPT + tokens[:-1]])
    logits = np.array(tiny_model(text, tiny_model.make_cache()).logits[0])
    summary = Summary.of(steps)
    expected = exact(logits[len(PROMPT) - 1 :], tokens)
    assert expected.keys() == SCORES.keys()
    found = {name: summary.scores[name] for name in expected}
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_an_answer_without_tokens_has_no_score():
    assert Summary().scores == {}
