"""XTC against its formula in float64."""

import numpy as np
import pytest

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.registry import make_sampler
from tests.oracle.samplers import at, drawn_from, softmax, some_logits


def stated(name, **options):
    return make_sampler(name, Profile.load().replace({"samplers": {name: options}}))


def left_by_xtc(logits, threshold, happens):
    p = softmax(logits)
    above = np.flatnonzero(p >= threshold)
    if happens and above.size > 1:
        p[[token for token in above if token != above[p[above].argmin()]]] = 0
    return p / p.sum()


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.6])
@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_xtc_excludes_all_top_choices_but_the_last(threshold, probability):
    sampler = stated("xtc", threshold=threshold, probability=probability)
    rng = np.random.default_rng(1)
    happened = 0
    for place in range(60):
        logits = some_logits(rng)
        happens = uniforms(7, place, 2)[1][1] < probability
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
