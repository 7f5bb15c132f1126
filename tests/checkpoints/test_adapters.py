"""Adapters as mlx-lm trains them: whole ones change the model, all others are refused."""

import contextlib
import json

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers

from entropix_mlx import load
from entropix_mlx.checkpoints.load import Extras
from entropix_mlx.errors import EntropixError, ModelNotFoundError, WeightsError
from tests.architectures import make, save
from tests.folders import edit_json

TOKENS = mx.array([[5, 1, 200, 77, 3]])
PARAMETERS = {"rank": 4, "scale": 20.0, "dropout": 0.0}
CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"


def logits_of(model):
    return model(TOKENS, model.make_cache()).logits


@pytest.fixture(params=["gemma3_text", "llama"])
def folder(request, tmp_path, byte_tokenizer):
    """A model; the folder for its adapters is beside it."""
    save(*make(request.param), tmp_path / "model")
    byte_tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def train(folder, kind, layers=2, keys=None):
    """Write what mlx-lm's trainer would, of random numbers; return the adapters' folder."""
    adapters, (model, _) = folder.with_name("adapters"), mlx_lm.load(str(folder))
    adapters.mkdir()
    model.freeze()
    parameters = PARAMETERS | ({"keys": keys} if keys else {})
    if kind == "full":
        for layer in model.layers[-layers:]:
            layer.unfreeze()
    else:
        linear_to_lora_layers(model, layers, parameters, use_dora=kind == "dora")
    edit_json(adapters / CONFIG, fine_tune_type=kind, num_layers=layers, lora_parameters=parameters)
    trained = {
        name: mx.random.normal(array.shape, key=mx.random.key(1))
        for name, array in tree_flatten(model.trainable_parameters())
    }
    mx.save_safetensors(str(adapters / WEIGHTS), trained)
    return adapters


@pytest.mark.parametrize(
    ("kind", "layers", "keys"),
    [
        *((kind, layers, None) for kind in ("lora", "dora", "full") for layers in (1, 2)),
        ("lora", -1, ["self_attn.q_proj"]),
    ],
)
def test_whole_adapters_compute_what_mlx_lm_does(folder, kind, layers, keys):
    adapters = train(folder, kind, layers, keys)
    adapted = logits_of(load(folder, extras=Extras(adapter_path=adapters))[0])
    reference = mlx_lm.load(str(folder), adapter_path=str(adapters))[0]
    np.testing.assert_allclose(adapted, reference(TOKENS), rtol=1e-3, atol=1e-2)
    assert np.abs(adapted - logits_of(load(folder)[0])).max() > 0.1


def test_adapters_that_lack_any_tensor_or_have_another_are_refused(folder):
    adapters = train(folder, "dora")
    whole = dict(mx.load(str(adapters / WEIGHTS)))
    mx.eval(whole)
    first = next(iter(whole))
    wrong = [{name: whole[name] for name in whole if name != absent} for absent in whole]
    wrong += [
        {},
        *({k: v for k, v in whole.items() if k.endswith(end)} for end in ("_a", "_b", ".m")),
        {name.replace("layers.1", "layers.7"): array for name, array in whole.items()},
        whole | {"model.norm.weight": mx.zeros((32,))},
        whole | {first: whole[first][1:]},
    ]
    for weights in [*wrong[::7], *wrong[-8:]]:
        mx.save_safetensors(str(adapters / WEIGHTS), weights)
        with pytest.raises(WeightsError, match="adapters"):
            load(folder, extras=Extras(adapter_path=adapters))


@pytest.mark.parametrize("name", [*PARAMETERS, "lora_parameters", "num_layers", "fine_tune_type"])
def test_a_configuration_of_another_kind_is_one_error_at_most(folder, name):
    adapters = train(folder, "lora")
    good = json.loads((adapters / CONFIG).read_text())
    for value in ("x", [], None, 10**400, {}, ...):
        changed = json.loads(json.dumps(good))
        part = changed["lora_parameters"] if name in PARAMETERS else changed
        del part[name]
        part |= {} if value is ... else {name: value}
        (adapters / CONFIG).write_text(json.dumps(changed))
        with contextlib.suppress(EntropixError):
            load(folder, extras=Extras(adapter_path=adapters))


@pytest.mark.parametrize(
    ("file", "content"),
    [(CONFIG, b"{"), (CONFIG, b"[]"), (WEIGHTS, b""), (WEIGHTS, b"\xff" * 99)],
)
def test_a_damaged_file_is_named(folder, file, content):
    adapters = train(folder, "lora")
    (adapters / file).write_bytes(content)
    with pytest.raises(WeightsError, match=file):
        load(folder, extras=Extras(adapter_path=adapters))


def test_a_folder_without_adapters_is_refused(folder):
    with pytest.raises(ModelNotFoundError):
        load(folder, extras=Extras(adapter_path="."))


def test_adapters_that_name_no_layer_are_refused(folder):
    adapters = train(folder, "lora")
    edit_json(adapters / CONFIG, lora_parameters=PARAMETERS | {"keys": ["no.such"]})
    mx.save_safetensors(str(adapters / WEIGHTS), {})
    with pytest.raises(WeightsError, match="no layer"):
        load(folder, extras=Extras(adapter_path=adapters))
