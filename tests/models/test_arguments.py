"""What a configuration means to the models that mlx-lm computes: translated, mended or refused."""

import importlib
import pkgutil

import mlx.core as mx
import mlx_lm.models
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.errors import UnsupportedModelError
from entropix_mlx.models.tapped.arguments import keys_of
from tests import architectures

pytestmark = pytest.mark.usefixtures("uncompiled")

MODULES = sorted(part.name for part in pkgutil.iter_modules(mlx_lm.models.__path__))
TOKENS = mx.array([list(b"The quick brown fox jumps over the dog")])
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}


@pytest.fixture
def logits(tmp_path, byte_tokenizer):
    """Return a function that gives the logits of a tiny model, after a change of its file."""

    def compute(kind, tokens=TOKENS, *, without=(), **changes):
        model, config = architectures.make(kind)
        stated = {name: config[name] for name in config.keys() - set(without)} | changes
        architectures.save(model, stated, tmp_path)
        byte_tokenizer.save_pretrained(tmp_path)
        return np.array(load(tmp_path)[0](tokens).logits[0])

    return compute


@pytest.mark.parametrize("name", MODULES)
def test_the_keys_that_every_class_reads_are_found(name):
    """The table is made by reading mlx-lm's source; here it is compared with the classes."""
    try:
        module = importlib.import_module(f"mlx_lm.models.{name}")
        arguments = module.ModelArgs.__dataclass_fields__
    except (ImportError, SystemExit, AttributeError):
        pytest.skip("no model, or it needs a package that is not here")
    keys = keys_of(module)
    assert keys.read <= keys.named
    assert {key for key, field in arguments.items() if field.init} <= keys.named
    assert keys.read & {"vocab_size", "num_vocab", "text_config"}


@pytest.mark.parametrize(
    ("kind", "old"),
    [
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
    default = {"rope_type": "default", "rope_theta": 10000.0}
    by_type = {"full_attention": default | {"rope_theta": 50.0}, "sliding_attention": default}
    found = logits("gemma3_text", without=["rope_theta"], rope_parameters=by_type)
    np.testing.assert_allclose(found, logits("gemma3_text", rope_theta=50.0), atol=1e-4)


@pytest.mark.parametrize("kind", ["gemma2", "mixtral", "phi3", "starcoder2"])
def test_a_window_that_the_class_does_not_know_is_kept(logits, kind):
    changed = mx.concatenate([mx.array([[0]]), TOKENS[:, 1:]], axis=1)
    near, far = (logits(kind, tokens, sliding_window=4) for tokens in (TOKENS, changed))
    if kind == "gemma2":  # of its two layers one has a window
        assert np.abs(near - logits(kind, sliding_window=512)).max() > 0.01
    else:  # two layers of windows see six tokens back
        np.testing.assert_allclose(near[7:], far[7:], atol=1e-5)
    assert np.abs(near[1:4] - far[1:4]).max() > 0.01


def test_longrope_is_exact_up_to_the_original_context_and_refused_beyond(logits):
    short = LONGROPE | {"long_factor": LONGROPE["short_factor"]}
    original = {"original_max_position_embeddings": 32}
    found = logits("phi3", TOKENS[:, :32], rope_scaling=LONGROPE, **original)
    expected = logits("phi3", TOKENS[:, :32], rope_scaling=short, **original)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(UnsupportedModelError, match="long_factor"):
        logits("phi3", rope_scaling=LONGROPE, **original)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gemma2", {"hidden_activation": "relu"}),
        ("qwen3_moe", {"hidden_act": "gelu"}),
        ("olmo2", {"hidden_act": "relu"}),
        ("cohere2", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("gemma3_text", {"final_logit_softcapping": 5.0}),
        ("mixtral", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
        ("plamo2", {"rope_parameters": {"rope_theta": 5e5}}),
        ("deepseek_v3", {"num_experts_per_tok": 1}),
    ],
)
def test_a_key_that_nobody_reads_is_refused_by_name(logits, kind, changes):
    name = "partial_rotary_factor" if kind == "mixtral" else next(iter(changes))
    with pytest.raises(UnsupportedModelError, match=name):
        logits(kind, **changes)
