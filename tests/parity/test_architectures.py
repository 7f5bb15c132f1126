"""Every feature that a configuration can express, against torch and transformers.

A configuration either gives the logits and the scores of transformers, or is refused by name. These
tests are skipped where torch is absent: ``pip install torch`` brings it.
"""

import json

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.errors import UnsupportedModelError, WeightsError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

TOLERANCE = 5e-4
"""Largest absolute difference of logits, of which the largest are about 10."""
CONTEXT, ORIGINAL, LENGTH = 512, 128, 300
"""The text is longer than what the scaled models are said to have been trained on."""
TINY = {
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "tie_word_embeddings": False,
}
KINDS = ("llama", "mistral", "qwen2", "qwen3")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}

FEATURES = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "every query has keys of its own": {"num_key_value_heads": 4},
    "one head of keys": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 40},
    "large epsilon": {"rms_norm_eps": 0.1},
    "theta": {"rope_theta": 500000.0},
    "theta, the new way": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "theta twice": {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 500000.0}},
}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "linear, the old way": {"type": "linear", "factor": 3.0},
    "linear, both ways": {"type": "linear", "rope_type": "linear", "factor": 3},
    "linear with a theta": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0},
    "linear with a key of another type": {"rope_type": "linear", "factor": 3.0, "beta_fast": 7},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": LLAMA3,
    "llama3 with another passage": LLAMA3 | {"low_freq_factor": 2.5, "high_freq_factor": 11},
    "llama3, context left out": {k: v for k, v in LLAMA3.items() if k[0] != "o"},
    "yarn": YARN,
    "yarn, context left out": {"rope_type": "yarn", "factor": 4.0},
    "yarn without truncation": YARN | {"truncate": False},
    "yarn with betas": YARN | {"beta_fast": 20, "beta_slow": 2.5},
    "yarn with mscales": YARN | {"mscale": 0.9, "mscale_all_dim": 0.5},
    "yarn with mscale alone": YARN | {"mscale": 0.5},
    "yarn with small factor": YARN | {"factor": 0.5},
    "yarn, finetuned": YARN | {"finetuned": True},
}
REFUSED = {
    "partial_rotary_factor": LLAMA3 | {"partial_rotary_factor": 0.5},
    "attention_factor": YARN | {"attention_factor": 0.7},
    "ropelong": {"rope_type": "ropelong", "factor": 2.0},
}


def random_torch_model(config, seed=0):
    """Return transformers' model of a configuration, all its numbers random."""
    torch.manual_seed(seed)
    described = transformers.AutoConfig.for_model(**json.loads(json.dumps(config)))
    described._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(described, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.ndim == 1 else weight.shape[-1] ** -0.5
            weight.copy_(torch.randn_like(weight) * spread + ("norm" in name))
    return model


@pytest.fixture
def write(tmp_path, byte_tokenizer):
    """Write transformers' model, with the configuration as it was given, and a tokenizer."""

    def write(config):
        model = random_torch_model(config)
        model.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))
        byte_tokenizer.save_pretrained(tmp_path)
        return model, tmp_path

    return write


def check_equal(theirs, folder):
    tokens = np.random.default_rng(0).integers(0, 256, (1, LENGTH))
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens), output_attentions=True)
    ours, _ = load(folder)
    found = ours(mx.array(tokens), ours.make_cache(), attention_layers="all")
    difference = np.abs(np.array(found.logits) - expected.logits.numpy()).max()
    assert difference <= TOLERANCE
    for scores, attention in zip(found.scores, expected.attentions, strict=True):
        shares = np.array(mx.softmax(scores, axis=-1))
        assert np.abs(shares[:, 0] - attention[:, :, -1].numpy()).max() <= TOLERANCE
    cache = ours.make_cache()
    ours(mx.array(tokens[:, :-1]), cache)
    last = ours(mx.array(tokens[:, -1:]), cache).logits[0, -1]
    assert np.abs(np.array(last) - expected.logits[0, -1].numpy()).max() <= TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_computes_what_torch_does(write, kind, feature):
    if (kind, feature) == ("qwen2", "wide heads"):
        pytest.skip("mlx-lm's class has none")
    check_equal(*write(TINY | {"model_type": kind} | FEATURES[feature]))


def test_biases_compute_what_torchs_do(write):
    check_equal(*write(TINY | {"attention_bias": True, "mlp_bias": True}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_scaling_computes_what_torch_does(write, kind, scaling):
    config = TINY | {"model_type": kind, "rope_theta": 10000.0}
    check_equal(*write(config | {"rope_scaling": SCALINGS[scaling]}))


@pytest.mark.parametrize("scaling", [YARN, LLAMA3], ids=["yarn", "llama3"])
def test_a_context_beside_the_scaling_counts_first(write, scaling):
    config = TINY | {"rope_scaling": scaling, "original_max_position_embeddings": 64}
    check_equal(*write(config))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name(tiny_folder, name):
    file = tiny_folder / "config.json"
    for key in ("rope_scaling", "rope_parameters"):
        stated = json.loads(file.read_text()) | {"rope_scaling": None} | {key: REFUSED[name]}
        file.write_text(json.dumps(stated))
        with pytest.raises((UnsupportedModelError, WeightsError), match=name):
            load(tiny_folder)
