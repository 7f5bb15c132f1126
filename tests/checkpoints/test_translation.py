"""What a configuration means to mlx-lm's classes: translated, limited or refused by name."""

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.errors import UnsupportedModelError
from tests import architectures

pytestmark = [pytest.mark.usefixtures("uncompiled"), pytest.mark.filterwarnings("ignore")]

TOKENS = mx.array([list(b"The quick brown fox jumps over the dog")])
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


@pytest.fixture
def loaded(tmp_path, byte_tokenizer):
    """Return a function that loads a tiny model after a change of its configuration."""

    def loaded(kind, *, without=(), **changes):
        model, config = architectures.make(kind)
        stated = {name: config[name] for name in config.keys() - set(without)} | changes
        architectures.save(model, stated, tmp_path)
        byte_tokenizer.save_pretrained(tmp_path)
        return load(tmp_path)[0]

    return loaded


@pytest.fixture
def logits(loaded):
    def logits(kind, **changes):
        model = loaded(kind, **changes)
        return np.array(model(TOKENS, model.make_cache()).logits[0])

    return logits


@pytest.mark.parametrize(
    ("kind", "old"),
    [
        ("llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
        ("qwen3", {"rope_theta": 5e5}),
        ("olmo2", {"rope_theta": 5e5}),
        ("olmo2", {"rope_theta": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
        ("granite", {"rope_theta": 100.0, "rope_scaling": YARN}),
        ("smollm3", {"rope_theta": 7.0}),
        ("phi", {"rope_theta": 7.0, "partial_rotary_factor": 0.25}),
    ],
)
def test_keys_of_transformers_5_mean_the_same_as_the_old_ones(logits, kind, old):
    new = {**old, **old.get("rope_scaling", {"rope_type": "default"})}
    new.pop("rope_scaling", None)
    gone = ("rope_theta", "rope_scaling", "partial_rotary_factor")
    found = logits(kind, without=gone, rope_parameters=new)
    np.testing.assert_allclose(found, logits(kind, **old), atol=1e-4)
    assert np.abs(found - logits(kind)).max() > 0.01


def test_each_type_of_layer_has_its_own_rotary_embedding(logits):
    by_type = {"full_attention": DEFAULT | {"rope_theta": 50.0}, "sliding_attention": DEFAULT}
    found = logits("gemma3_text", without=["rope_theta"], rope_parameters=by_type)
    np.testing.assert_allclose(found, logits("gemma3_text", rope_theta=50.0), atol=1e-4)


@pytest.mark.parametrize("kind", ["gemma2", "mistral", "mixtral", "starcoder2"])
def test_a_window_that_the_class_does_not_know_limits_the_context(loaded, kind):
    assert loaded(kind).config.max_position_embeddings == 512
    assert loaded(kind, sliding_window=64).config.max_position_embeddings == 64
    assert loaded(kind, sliding_window=4096).config.max_position_embeddings == 512


def test_longrope_is_exact_up_to_the_original_context(loaded):
    original = {"original_max_position_embeddings": 128}
    short = LONGROPE | {"long_factor": LONGROPE["short_factor"]}
    models = [loaded("phi3", rope_scaling=rope, **original) for rope in (LONGROPE, short)]
    assert [model.config.max_position_embeddings for model in models] == [128, 128]
    found, expected = (model(TOKENS, model.make_cache()).logits for model in models)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"mscale": 0.5}, False),
        ({"original_max_position_embeddings": None}, True),
    ],
    ids=str,
)
def test_keys_of_yarn_that_mlx_lm_ignores_or_reads_alone(logits, changes, differs):
    plain = logits("olmo2", rope_scaling=YARN)
    found = logits("olmo2", rope_scaling=YARN | changes)
    assert (np.abs(found - plain).max() > 1e-4) is np.bool_(differs)


def test_yarn_is_interpolated_between_fractions_of_pairs_where_that_is_said(logits):
    yarn = YARN | {"original_max_position_embeddings": 128, "beta_fast": 20.0}
    exact = logits("gpt_oss", rope_scaling=yarn | {"truncate": False}, without=["rope_parameters"])
    rounded = logits("gpt_oss", rope_scaling=yarn, without=["rope_parameters"])
    assert np.abs(exact - rounded).max() > 1e-4


def test_dynamic_scaling_is_none_up_to_the_context(logits):
    dynamic = {"rope_type": "dynamic", "factor": 4.0}
    np.testing.assert_allclose(
        logits("llama", rope_scaling=dynamic), logits("llama"), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("kind", "name", "changes"),
    [
        ("no_such", "no_such", {}),
        ("olmo2", "hidden_act", {"hidden_act": "relu"}),
        ("cohere2", "layer_types", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("gemma3_text", "final_logit_softcapping", {"final_logit_softcapping": 5.0}),
        ("mixtral", "partial_rotary_factor", {"rope_parameters": {"partial_rotary_factor": 0.5}}),
        ("mixtral", "rope_type", {"rope_scaling": YARN}),
        ("olmo2", "attention_factor", {"rope_scaling": YARN | {"attention_factor": 0.7}}),
        ("llama", "ropelong", {"rope_scaling": {"rope_type": "ropelong", "factor": 2.0}}),
        (
            "olmo3",
            "sliding_attention",
            {
                "rope_parameters": {
                    "full_attention": DEFAULT | {"rope_theta": 50.0},
                    "sliding_attention": DEFAULT,
                }
            },
        ),
    ],
)
def test_what_mlx_lm_would_ignore_is_refused_by_name(loaded, kind, name, changes):
    if kind == "no_such":
        kind, changes = "llama", {"model_type": "no_such"}
    if "rope_parameters" in changes and "partial" in name:
        changes = {"rope_parameters": DEFAULT | changes["rope_parameters"]}
    with pytest.raises(UnsupportedModelError, match=name):
        loaded(kind, **changes)
