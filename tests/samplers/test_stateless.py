"""dynatemp and XTC against their formulas in float64."""

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.registry import make_sampler
from tests.oracle.samplers import at, drawn_from, entropy, softmax, some_logits


@pytest.mark.parametrize("options", [(0.5, 1.5, 1.0), (0.1, 3.0, 2.0), (1.2, 0.4, 0.5)])
def test_dynatemp_maps_the_entropy_to_a_temperature(options):
    low, high, exponent = options
    names = ("min_temperature", "max_temperature", "exponent")
    stated = {"samplers": {"dynatemp": dict(zip(names, options, strict=True))}}
    sampler = make_sampler("dynatemp", Profile.load().replace(stated))
    rng = np.random.default_rng(0)
    for _ in range(30):
        logits = some_logits(rng)
        share = entropy(softmax(logits)) / np.log(logits.size)
        (read,) = at(sampler, logits).read()
        assert read.decision.temperature == pytest.approx(
            low + (high - low) * share**exponent, rel=1e-4
        )


def left_by_xtc(logits, threshold, happens):
    p = softmax(logits)
    above = np.flatnonzero(p >= threshold)
    if happens and above.size > 1:
        p[[token for token in above if token != above[p[above].argmin()]]] = 0
    return p / p.sum()


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.6])
@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_xtc_excludes_all_top_choices_but_the_last(threshold, probability):
    stated = {"samplers": {"xtc": {"threshold": threshold, "probability": probability}}}
    sampler = make_sampler("xtc", Profile.load().replace(stated))
    rng = np.random.default_rng(1)
    happened = 0
    for place in range(60):
        logits = some_logits(rng)
        happens = uniforms(7, place, 2)[1][0] < probability
        happened += happens
        queued = at(sampler, logits, place, seed=7)
        expected = left_by_xtc(logits, threshold, happens)
        np.testing.assert_allclose(drawn_from(queued), expected, atol=1e-5)
        assert expected[queued.token.item()] > 0
    assert happened == {0.0: 0, 1.0: 60}.get(probability, happened)
    assert probability != 0.5 or 15 < happened < 45


def test_xtc_takes_the_filters_of_a_baseline():
    sampler = make_sampler("xtc", given={"temperature": 0.0, "top_k": 3, "top_p": 0.9})
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    drawn = {at(sampler, logits, place).token.item() for place in range(40)}
    # Greedy: the best token, or the least probable one of at least 0.1.
    assert drawn == {0, 3}


def test_the_decision_is_that_of_the_seed_and_the_position():
    sampler = make_sampler("xtc")
    logits = some_logits(np.random.default_rng(2))
    first = [at(sampler, logits, place).token.item() for place in range(30)]
    assert first == [at(sampler, logits, place).token.item() for place in range(30)]
    assert sampler.remembered is None
    assert mx.all(at(sampler, logits).packed == at(sampler, logits).packed)
