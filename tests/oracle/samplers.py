"""What the oracles of samplers share: a position of made-up logits, and softmax in float64."""

import mlx.core as mx
import numpy as np

from entropix_mlx.samplers import metrics
from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.position import sample


def softmax(logits):
    p = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return p / p.sum()


def entropy(p):
    """In nats."""
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def some_logits(rng, size=300):
    return rng.normal(scale=rng.uniform(0.1, 6), size=size).astype(np.float32)


def measure(logits, layers):
    """Measure a position of each row: `(rows, vocab)` logits, `(rows, heads, keys)` a layer."""
    return metrics.measure(logits, metrics.measure_attention(layers))


def planned(sampler, measured):
    """Return the plan of a sampler."""
    return sampler.rule(measured, sampler.numbers)


def at(sampler, logits, place=0, seed=0):
    """Return a queued position of one text."""
    randomness = mx.array([uniforms(seed, place, sampler.draws)])
    return sample(sampler, mx.array(logits[None]), None, randomness)


def drawn_from(queued):
    """Return the probabilities that a queued position draws from, without its plan's filters."""
    gaps = np.array(queued.drawn_from[0], np.float64)
    temperature = max(float(queued.plan(0).temperature[0]), 1e-6)
    p = np.exp2(-gaps / temperature)
    return p / p.sum()
