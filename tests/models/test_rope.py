"""Scaled rotary embeddings: the formulas against NumPy, and what is refused."""

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx import load
from entropix_mlx.errors import UnsupportedModelError, WeightsError
from entropix_mlx.models.config import frequencies, parse_config, parse_scaling
from entropix_mlx.models.llama.model import make_rope
from tests.conftest import TINY, make_tiny_model
from tests.folders import LLAMA3, edit_json

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def turned(x, offset, turns, factor):
    """Turn pairs of halves in float64: the definition of the rotary embedding."""
    angles = (offset + np.arange(x.shape[-2]))[:, None] * np.array(turns)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    first, second = np.split(x.astype(np.float64), 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@pytest.mark.parametrize(
    "scaling",
    [None, {"rope_type": "linear", "factor": 3.0}, LLAMA3, YARN, YARN | {"attention_factor": 0.5}],
)
@pytest.mark.parametrize("offset", [0, 17])
def test_the_layer_turns_by_the_frequencies(scaling, offset):
    config = make_tiny_model(rope_scaling=scaling, head_dim=16).config
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 16)).astype(np.float32)
    expected = turned(x, offset, *frequencies(16, config.rope_theta, scaling))
    found = make_rope(config)(mx.array(x), offset=offset)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_yarns_passage_by_hand():
    # Over 64 positions, pair i turns 64 · 100^(-i/4) / 2π times: 10.2, 3.2, 1.02, 0.32.
    scaling = YARN | {"beta_fast": 64 / (2 * math.pi) / 10, "beta_slow": 64 / (2 * math.pi) / 100}
    plain, scaled = frequencies(8, 1e2, None).turns, frequencies(8, 1e2, scaling).turns
    np.testing.assert_allclose(np.divide(scaled, plain), [1, 1, 1, 1 - 0.75 / 2], rtol=1e-9)
    assert frequencies(8, 1e2, scaling).attention_factor == pytest.approx(1 + 0.1 * math.log(4))


@given(st.floats(1, 100), st.floats(1, 4), st.floats(4.5, 40))
def test_llama_3_keeps_fast_turns_and_divides_slow_ones(factor, low, high):
    scaling = LLAMA3 | {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    plain, scaled = frequencies(64, 1e4, None).turns, frequencies(64, 1e4, scaling).turns
    ratios = np.divide(plain, scaled)
    assert ratios[0] == pytest.approx(1 if 64 / (2 * math.pi) > high else ratios[0])
    assert ratios[-1] == pytest.approx(factor)
    assert (np.diff(ratios) >= -1e-9).all()


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"rope_type": "magic"}, "the rope_scaling 'magic' is not supported"),
        ({"rope_type": ["yarn"]}, "is not supported"),
        ({"rope_type": math.nan}, "nan is not supported"),
        ({"rope_type": "su", "type": "su"}, "'su' is not supported"),
        ({"rope_type": "linear", "type": "yarn", "factor": 2}, "keep the right one"),
        ({"factor": 4.0}, "has no rope_type"),
        ({"type": None, "factor": 4.0}, "has no rope_type"),
        ({"a": 1}, "the key 'a'"),
        ({"rope_type": "linear", "factor": 2.0, "shiny": 1}, "the key 'shiny'"),
        ({"rope_type": "default", "short_factor": [1]}, "the key 'short_factor'"),
        ({"rope_type": "linear"}, "factor .* not None"),
        (LLAMA3 | {"low_freq_factor": None}, "low_freq_factor .* not None"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "less than high_freq_factor"),
        (LLAMA3 | {"original_max_position_embeddings": 0}, "original_max.* whole number, not 0"),
        (YARN | {"truncate": 1}, "truncate .* true or false, not 1"),
        (YARN | {"beta_slow": "1"}, "beta_slow .* not '1'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(stated, message):
    with pytest.raises(UnsupportedModelError, match=f"here: .*{message}"):
        parse_scaling(stated, 256, "here")


@pytest.mark.parametrize(
    "value", [-1, 0, -0.5, math.nan, math.inf, True, 1e39, 10**400, "4", [4], {}, [[1]]]
)
@pytest.mark.parametrize(
    "scaling", [{"rope_type": "linear"}, {"rope_type": "dynamic"}, LLAMA3, YARN], ids=str
)
def test_an_impossible_factor_is_refused(scaling, value):
    for key in ("rope_scaling", "rope_parameters"):
        with pytest.raises(UnsupportedModelError, match="here: factor"):
            parse_config(TINY | {key: scaling | {"factor": value}}, "here")


@pytest.mark.parametrize("name", ["rope_theta", "rms_norm_eps"])
@pytest.mark.parametrize("value", [-1, 0, math.nan, math.inf, True, 1e39, 10**400, "4", []])
def test_an_impossible_number_is_refused(name, value):
    with pytest.raises(WeightsError, match=f"here: {name}"):
        parse_config(TINY | {name: value}, "here")


def test_a_wrong_scaling_is_refused_before_weights_are_read(tiny_folder, monkeypatch):
    monkeypatch.setattr(mx, "load", lambda _: pytest.fail("it was read"))
    edit_json(tiny_folder / "config.json", rope_scaling={"factor": 4})
    with pytest.raises(UnsupportedModelError, match="rope_type"):
        load(tiny_folder)


@pytest.mark.parametrize("value", [0, False, "", [], "llama3", 3.5, [{}]])
def test_a_scaling_of_a_wrong_type_is_refused(tiny_folder, value):
    edit_json(tiny_folder / "config.json", rope_scaling=value)
    with pytest.raises(WeightsError, match="rope_scaling"):
        load(tiny_folder)


def test_a_theta_that_yarn_cannot_use_is_refused():
    with pytest.raises(UnsupportedModelError, match="rope_theta"):
        parse_config(TINY | {"rope_scaling": YARN, "rope_theta": 1}, "here")
