"""Biases, penalties and DRY against loops in float64, written from their definitions."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entropix_mlx.samplers.base import WINDOW, TextStart, Window
from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.logit_processors import LARGEST_PENALTY, LONGEST, adjust
from entropix_mlx.samplers.position import sample
from entropix_mlx.samplers.registry import make_sampler

VOCAB = 12
BREAKERS = [7, 9]


def expected_logits(logits, prompt, answer, options):
    z = np.array(logits, np.float64)
    text = [*prompt, *answer]
    for token, bias in options.get("logit_bias", {}).items():
        z[token] += bias
    penalty = options.get("repetition_penalty", 1.0)
    for token in set(text):
        z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
    for token in set(answer):
        z[token] -= answer.count(token) * options.get("frequency_penalty", 0.0)
        z[token] -= options.get("presence_penalty", 0.0)
    return z - dry(text, options)


def dry(text, options):
    """Follow text-generation-webui's loop: every earlier place of the last token, backwards."""
    multiplier = options.get("dry_multiplier", 0.0)
    base, allowed = options.get("dry_base", 1.75), options.get("dry_allowed_length", 2)
    penalties = np.zeros(VOCAB)
    if not text or not multiplier or text[-1] in BREAKERS:
        return penalties
    longest = {}
    for place in range(len(text) - 1):
        following = text[place + 1]
        if text[place] != text[-1] or following in BREAKERS:
            continue
        length = 1
        while length <= place and text[place - length] == text[-1 - length]:
            if text[place - length] in BREAKERS:
                break
            length += 1
        longest[following] = max(longest.get(following, 0), min(length, LONGEST))
    for token, length in longest.items():
        if length >= allowed:
            penalties[token] = min(multiplier * base ** (length - allowed), LARGEST_PENALTY)
    return penalties


def state_of(prompt, answer):
    memory = Window()
    state = memory.start(TextStart(prompt, VOCAB, BREAKERS))
    for token in answer:
        state = memory.observe(state, mx.array([token]), mx.array([-1.0]))
    return state


number = st.floats(-2, 2, width=32)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), number, min_size=1),
        "repetition_penalty": st.floats(0.5, 2, width=32),
        "presence_penalty": number,
        "frequency_penalty": number,
        "dry_multiplier": st.floats(0, 2, width=32),
        "dry_base": st.floats(1, 2, width=32),
        "dry_allowed_length": st.integers(1, 4),
    },
)
TEXT = st.lists(st.sampled_from([0, 1, 2, 3, 7, 9]), max_size=40)


@given(prompt=TEXT, answer=TEXT, options=OPTIONS, seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_logits_are_changed_as_defined(prompt, answer, options, seed):
    logits = np.random.default_rng(seed).normal(scale=3, size=VOCAB).astype(np.float32)
    found = changed(logits[None], options, state_of(prompt, answer))
    expected = expected_logits(logits, prompt, answer, options)
    np.testing.assert_allclose(np.array(found[0]), expected, rtol=2e-4, atol=2e-4)


def changed(logits, options, state):
    return adjust(mx.array(logits), make_sampler("greedy", given=options).adjustment, state)


@pytest.mark.parametrize("length", [48, 49, 50, 51, 70])
def test_a_long_repetition(length):
    rng = np.random.default_rng(length)
    piece = [3, *rng.integers(0, 6, length - 1).tolist()]
    text = [*piece, 4, *piece]
    options = {"dry_multiplier": 0.5, "dry_base": 1.05, "dry_allowed_length": 2}
    found = changed(mx.zeros((1, VOCAB)), options, state_of(text[:20], text[20:]))
    np.testing.assert_allclose(np.array(found[0]), -dry(text, options), rtol=1e-4, atol=1e-5)
    assert found[0, 4].item() == pytest.approx(-0.5 * 1.05 ** (min(length, 50) - 2), rel=1e-4)


def test_only_the_end_of_a_long_text_counts():
    answer = [1] * 30 + [2] * WINDOW
    found = changed(mx.zeros((1, VOCAB)), {"frequency_penalty": 1.0}, state_of([], answer))
    assert found[0].tolist() == [0, 0, -WINDOW] + [0] * (VOCAB - 3)


@pytest.mark.parametrize(
    "options", [{}, {"dry_multiplier": 0}, {"repetition_penalty": 1}, {"logit_bias": {}}]
)
def test_what_changes_nothing_is_left_out(options):
    sampler = make_sampler("entropix", given=options)
    assert not sampler.adjustment
    assert sampler.remembered is None


@pytest.mark.parametrize("sampler", ["entropix", "greedy", "temperature", "top_n_sigma", "p_less"])
def test_only_the_draw_sees_the_change(sampler):
    logits = mx.array(np.random.default_rng(1).normal(size=(1, 400)).astype(np.float32))
    scores = [[mx.zeros((1, 2, 3))]]
    best = int(logits.argmax())
    bias = {"logit_bias": {best: -100.0, 399: 100.0}}
    plain, biased = make_sampler(sampler), make_sampler(sampler, given=bias)
    randomness = mx.array([uniforms(0, 0, plain.draws)]).reshape(1, plain.draws, 2)
    (one,) = sample(plain, logits, scores, randomness, 3).read()
    (other,) = sample(biased, logits, scores, randomness, 3).read()
    assert other.token == 399
    assert other.decision.metrics == one.decision.metrics
    assert other.decision.strategy == one.decision.strategy
    assert other.alternatives == one.alternatives
    log_total = mx.logsumexp(logits[0]).item()
    assert other.logprob == pytest.approx(float(logits[0, 399]) - log_total, abs=1e-4)
