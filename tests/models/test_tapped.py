"""Loading, listing and converting models that mlx-lm computes; what they cannot do is said."""

import json
import logging
import math

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from huggingface_hub import constants
from mlx_lm.models import base
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache

from entropix_mlx import Profile, cli, load, score, stream_generate
from entropix_mlx.api.prompts import conversation_text
from entropix_mlx.checkpoints import inventory
from entropix_mlx.checkpoints.loading import Extras
from entropix_mlx.conversion.convert import convert, save
from entropix_mlx.conversion.recipe import Recipe
from entropix_mlx.errors import TokenizerError, UnsupportedModelError
from entropix_mlx.lab.bench.bench import bench
from entropix_mlx.lab.bench.figures import QUICK
from entropix_mlx.lab.calibration.calibrate import PromptSet, calibrate
from entropix_mlx.models.llama.model import Model
from entropix_mlx.models.tapped.model import TappedModel
from entropix_mlx.step import Step
from tests import architectures
from tests.conftest import make_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("uncompiled")]

PROMPT = list(b"The quick brown fox")


@pytest.fixture
def folder(tmp_path, byte_tokenizer):
    """Return a function that writes a tiny model of an architecture."""

    def write(kind, **changes):
        target = tmp_path / kind
        model, config = architectures.make(kind)
        architectures.save(model, config | changes, target)
        byte_tokenizer.save_pretrained(target)
        return target

    return write


def greedy(model, tokenizer, **options):
    return list(
        stream_generate(model, tokenizer, PROMPT, sampler="greedy", max_tokens=10, **options)
    )


def theirs(path):
    model, tokenizer = mlx_lm.load(str(path))
    responses = mlx_lm.stream_generate(model, tokenizer, PROMPT, max_tokens=10)
    return [response.token for response in responses]


@pytest.mark.parametrize("kind", ["gemma3", "gpt_oss", "qwen3_5", "mamba2"])
def test_a_folder_answers_as_with_mlx_lm(folder, kind):
    path = folder(kind)
    model, tokenizer = load(path)
    assert isinstance(model, TappedModel)
    tokens = [step.token for step in greedy(model, tokenizer)]
    assert tokens == theirs(path)[: len(tokens)]


def test_quantized_weights(folder, tmp_path):
    path = convert(folder("gemma3_text"), tmp_path / "packed", Recipe(bits=8, group_size=32))
    for dequantize in (True, False):
        model, tokenizer = load(path, dequantize=dequantize)
        packed = any(isinstance(part, nn.QuantizedLinear) for part in model.modules())
        assert packed is not dequantize
        tokens = [step.token for step in greedy(model, tokenizer)]
        assert tokens == theirs(path)[: len(tokens)]


def test_a_llama_gives_the_same_steps_as_the_port(tmp_path, byte_tokenizer):
    save(make_tiny_model(), byte_tokenizer, tmp_path)
    options = {"seed": 1, "max_tokens": 20}
    runs = []
    for tapped in (False, True):
        model, tokenizer = load(tmp_path, tapped=tapped)
        assert isinstance(model, TappedModel if tapped else Model)
        runs.append(
            [
                list(stream_generate(model, tokenizer, PROMPT, attention_layers=layers, **options))
                for layers in ("last", "all")
            ]
        )
    for ours, other in zip(*runs, strict=True):
        assert [step.token for step in ours] == [step.token for step in other]
        assert [step.strategy for step in ours] == [step.strategy for step in other]
        np.testing.assert_allclose(
            [step.metrics for step in ours], [step.metrics for step in other], atol=1e-4, rtol=1e-4
        )


def test_what_is_not_measured_is_told_apart(folder):
    model, tokenizer = load(folder("mamba"))
    steps = list(stream_generate(model, tokenizer, PROMPT, seed=1, max_tokens=6))
    assert all(math.isnan(step.attention_entropy) for step in steps)
    assert all(math.isfinite(step.temperature + step.position_score) for step in steps)
    record = json.loads(json.dumps(steps[0].to_dict(), allow_nan=False))
    assert record["attention_entropy"] is None
    assert math.isnan(Step.from_dict(record).agreement)


def test_a_vision_model_says_that_only_its_language_part_runs(folder, caplog):
    path = folder("gemma3", vision_config={"hidden_size": 8})
    with caplog.at_level(logging.INFO, logger="entropix_mlx"):
        load(path)
    assert "only the language part is loaded: its vision part is left out" in caplog.text


def test_the_inventory_knows_it_and_reads_no_weights(folder, monkeypatch):
    path = folder("gemma3_text")
    monkeypatch.setattr(inventory, "demo_model", lambda: None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(path / "none"))
    (entry,) = inventory.inventory([path])
    assert (entry.fault, entry.context, entry.precision) == (None, 512, "float32")


def test_what_reads_the_ports_weights_says_so(folder):
    model, tokenizer = load(folder("gpt2"))
    with pytest.raises(UnsupportedModelError, match="gpt2"):
        bench(model, tokenizer, QUICK)


def test_mlx_lms_converter_writes_it(folder, tmp_path, caplog):
    source = folder("gemma3_text")
    with caplog.at_level(logging.INFO, logger="entropix_mlx"):
        out = convert(source, tmp_path / "out", Recipe(dtype="float16"))
    assert "mlx-lm's own converter" in caplog.text
    assert json.loads((out / "config.json").read_text())["model_type"] == "gemma3_text"
    model, tokenizer = load(out)
    assert len(greedy(model, tokenizer)) == 10
    assert convert(source, out, force=True) == out


def test_a_given_text_is_measured(folder):
    model, tokenizer = load(folder("qwen3_5"))
    steps = score(model, tokenizer, list(b" jumps"), after=PROMPT)
    drawn = greedy(model, tokenizer)
    assert steps[0].entropy == pytest.approx(drawn[0].entropy, abs=1e-3)
    assert steps[0].attention_entropy == pytest.approx(drawn[0].attention_entropy, abs=1e-3)
    assert len(steps) == 6


def test_a_quantized_cache_is_measured_and_taken_back(byte_tokenizer, monkeypatch):
    model = TappedModel(*architectures.make("qwen3_moe", head_dim=32))
    model.quantize_cache(8, 32, 0)
    original, exact = base.quantized_scaled_dot_product_attention, []

    def noting(queries, keys, values, scale, mask, **packing):
        if queries.shape[2] == 1:
            unpacked = np.array(mx.dequantize(*keys, **packing)[0], np.float64)
            unpacked = np.repeat(unpacked, queries.shape[1] // unpacked.shape[0], axis=0)
            scores = scale * (np.array(queries[0], np.float64) @ unpacked.swapaxes(-1, -2))
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            exact.append(-(weights * np.log2(weights)).sum(axis=-1).mean())
        return original(queries, keys, values, scale, mask, **packing)

    monkeypatch.setattr(base, "quantized_scaled_dot_product_attention", noting)
    steps = greedy(model, byte_tokenizer, pipelined=False)
    expected = exact[len(model.attention_heads) - 1 :: len(model.attention_heads)][: len(steps)]
    np.testing.assert_allclose([step.attention_entropy for step in steps], expected, atol=1e-3)
    monkeypatch.undo()
    thresholds = {"low_entropy": -1, "branch_max_entropy": 1e9}
    profile = Profile.load().replace({"thresholds": thresholds, "branch": {"max_branches": 8}})
    options = {"seed": 1, "max_tokens": 12, "profile": profile}
    first, second = (
        list(stream_generate(model, byte_tokenizer, PROMPT, pipelined=way, **options))
        for way in (True, False)
    )
    assert first == second
    assert any(step.fork for step in first)


def test_a_cache_that_cannot_be_quantized_is_refused(folder):
    for kind in ("gpt2", "gemma3_text"):  # heads of 8 numbers; sliding windows
        with pytest.raises(UnsupportedModelError, match=f"KV cache of this {kind} cannot be"):
            load(folder(kind), extras=Extras(kv_bits=8, kv_group_size=32))


def test_endings_and_template_variables(folder):
    path = folder("gemma3_text")
    template = "{% if quick %}quick {% endif %}{{ messages[0]['content'] }}"
    (path / "chat_template.jinja").write_text(template)
    extras = Extras(extra_eos_tokens=("65",), chat_template_config={"quick": True})
    _, tokenizer = load(path, extras=extras)
    assert 65 in tokenizer.eos_token_ids
    assert conversation_text(tokenizer, [{"role": "user", "content": "Hi"}]) == "quick Hi"
    with pytest.raises(TokenizerError, match="is no token of this model"):
        load(path, extras=Extras(extra_eos_tokens=("<no such>",)))


@pytest.mark.parametrize("kind", ["gemma3_text", "llama"])
def test_a_prompt_that_mlx_lm_cached(folder, kind, tmp_path, capsys):
    path, file = folder(kind), tmp_path / "prompt.safetensors"
    inner = mlx_lm.load(str(path))[0]
    cache = make_prompt_cache(inner)
    inner(mx.array([PROMPT[:9]]), cache=cache)
    save_prompt_cache(str(file), cache)
    model, tokenizer = load(path)
    whole = [step.token for step in greedy(model, tokenizer)]
    options = {"sampler": "greedy", "max_tokens": 10, "prompt_cache": load_prompt_cache(str(file))}
    rest = stream_generate(model, tokenizer, PROMPT[9:], **options)
    assert [step.token for step in rest] == whole
    command = ["generate", "--model", str(path), "--ignore-chat-template", "-m", "3", "-p", "fox"]
    given = ["--prompt-cache-file", str(file), "--prefill-response", "A", "--sampler", "greedy"]
    assert cli.main([*command, *given]) == 0
    assert cli.main([*command, "--prompt-cache-file", str(path / "config.json")]) != 0
    assert "cannot be read as a prompt cache" in capsys.readouterr().err


def test_a_profile_is_calibrated_without_attention(byte_tokenizer):
    model = TappedModel(*architectures.make("mamba", max_position_embeddings=4096))
    few = PromptSet(["Hello", "Why?", "Who is it?", "What is 3 + 4?"], ["How many?", "Is it so?"])
    found = calibrate(model, byte_tokenizer, "mamba", prompts=few, tokens=9, seed=3)
    assert set(found.auroc) == {"entropy", "varentropy", "margin"}
    assert found.profile.calibration["fingerprint"].startswith("mamba, 2 layers of 32")
