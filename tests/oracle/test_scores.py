"""Scores of answers, against float64 NumPy from the logits of the whole text."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import stream_generate
from entropix_mlx.api import attention
from entropix_mlx.engine.cached_text import CachedText
from entropix_mlx.errors import PromptError, UnsupportedModelError
from entropix_mlx.models.tapped.model import TappedModel
from entropix_mlx.profiles.confidence import GROUP, LONG_GROUP, SCORES, AnswerMetrics, score_of
from entropix_mlx.step import Origin
from entropix_mlx.summary import Summary
from tests import architectures

PROMPT = [1, 2, 3, 4]
LISTED = 5
OFF = {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}
"""Without interventions, the logits of the text are those of its positions."""


def means_in_a_row(values, length):
    length = min(length, len(values))
    return np.convolve(values, np.ones(length) / length, mode="valid")


def exact(logits, tokens, first):
    """Return the scores by their definitions; `logits` are those before each token."""
    z = logits.astype(np.float64)
    logs = z - z.max(axis=-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=-1, keepdims=True))
    p, vocab = np.exp(logs), z.shape[-1]
    entropy = -(p * logs).sum(axis=-1) / np.log(2)
    varentropy = (p * (-logs / np.log(2) - entropy[:, None]) ** 2).sum(axis=-1)
    drawn = logs[np.arange(len(tokens)), tokens]
    ordered = np.sort(p, axis=-1)[:, ::-1]
    margin = ordered[:, 0] - ordered[:, 1]
    confidence = -np.log(ordered[:, :LISTED]).mean(axis=-1)
    return {
        "mean_logprob": drawn.mean(),
        "min_logprob": drawn.min(),
        "perplexity": np.exp(-drawn.mean()),
        "sequence_probability": np.exp(drawn.sum()),
        "lowest_logprob": means_in_a_row(drawn, GROUP).min(),
        "min_margin": margin.min(),
        "first_margin": margin[first],
        "mean_entropy": entropy.mean(),
        "max_entropy": entropy.max(),
        "first_entropy": entropy[first],
        "mean_varentropy": varentropy.mean(),
        "self_certainty": (np.log(1 / vocab) - logs).mean(axis=-1).mean(),
        "lowest_group_confidence": means_in_a_row(confidence, GROUP).min(),
        "lowest_long_group_confidence": means_in_a_row(confidence, LONG_GROUP).min(),
    }


@pytest.mark.parametrize("sampler", ["entropix", "greedy", "min_p"])
def test_scores_are_as_defined(sampler, tiny_model, byte_tokenizer):
    options = {"sampler": sampler, "max_tokens": 40, "seed": 3, "top_logprobs": LISTED}
    steps = list(stream_generate(tiny_model, byte_tokenizer, PROMPT, changes=OFF, **options))
    tokens = [step.token for step in steps]
    text = CachedText(tiny_model.make_cache())
    logits = np.array(tiny_model(mx.array([PROMPT + tokens[:-1]]), text.layers)[0][0])
    summary = Summary.of(steps)
    expected = exact(logits[len(PROMPT) - 1 :], tokens, summary.metrics.first)
    assert expected.keys() == SCORES.keys() - {"attention_entropy"}
    found = {name: summary.scores[name] for name in expected}
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_what_was_not_measured_has_no_score(tiny_model, byte_tokenizer):
    steps = list(stream_generate(tiny_model, byte_tokenizer, PROMPT, max_tokens=4, seed=1))
    assert "lowest_group_confidence" not in Summary.of(steps).scores
    assert Summary().scores == {}


def exact_rauq(logprob, previous, alpha=0.2):
    """Return RAUQ by its definition; `previous` is `(tokens but the first, layers, heads)`."""
    count, scores = previous.shape[1], []
    for layer in range(count // 3, min(count, -(-2 * count // 3) + 1)):
        weights = previous[:, layer, previous[:, layer].mean(axis=0).argmax()]
        confidence = [np.exp(logprob[0])]
        for own, weight in zip(logprob[1:], weights, strict=True):
            confidence.append(alpha * np.exp(own) + (1 - alpha) * weight * confidence[-1])
        scores.append(1 - np.log(confidence).mean())
    return max(scores)


def last_weights(model, tokens):
    """Return how much the last token attends to itself, `(layers, heads)`."""
    scores = model(mx.array([tokens]), attention_layers="all").scores
    z = np.stack([np.array(layer[0], dtype=np.float64) for layer in scores])
    weights = np.exp(z - z.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True))[..., -1]


@pytest.mark.parametrize("inserted", [set(), {0, 5, 6}])
def test_rauq_is_as_defined(inserted, tiny_model, byte_tokenizer, monkeypatch):
    options = {"sampler": "greedy", "max_tokens": 20, "seed": 3}
    steps = [
        replace(step, origin=Origin.INSERTED) if at in inserted else step
        for at, step in enumerate(stream_generate(tiny_model, byte_tokenizer, PROMPT, **options))
    ]
    tokens = [*PROMPT, *(step.token for step in steps)]
    own = [at for at in range(len(steps)) if at not in inserted]
    previous = [last_weights(tiny_model, tokens[: len(PROMPT) + at]) for at in own[1:]]
    expected = exact_rauq([steps[at].logprob for at in own], np.stack(previous))
    assert attention.rauq(tiny_model, PROMPT, steps) == pytest.approx(expected, abs=1e-4)
    monkeypatch.setattr(attention, "RUN_SCORES", 300)  # a few queries at a time
    read = attention.previous_attention(tiny_model, PROMPT, steps)
    metrics = replace(AnswerMetrics.of(steps), previous_attention=read)
    assert score_of("rauq", metrics) == pytest.approx(-expected, abs=1e-4)


def test_the_first_token_is_preceded_by_none(tiny_model, byte_tokenizer):
    steps = list(stream_generate(tiny_model, byte_tokenizer, PROMPT, max_tokens=1, seed=1))
    found = attention.rauq(tiny_model, PROMPT, steps)
    assert found == pytest.approx(1 - steps[0].logprob)
    assert score_of("rauq", AnswerMetrics.of(steps)) == -np.inf
    assert attention.previous_attention(tiny_model, PROMPT, []) == ()
    for prompt, answer in ((PROMPT, []), ([10**6], steps)):
        with pytest.raises(PromptError):
            attention.rauq(tiny_model, prompt, answer)


def test_attention_of_other_families_is_refused(byte_tokenizer):
    model = TappedModel(*architectures.make("llama"))
    steps = list(stream_generate(model, byte_tokenizer, PROMPT, max_tokens=2, seed=1))
    with pytest.raises(UnsupportedModelError):
        attention.rauq(model, PROMPT, steps)
