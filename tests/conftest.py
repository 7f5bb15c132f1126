"""Shared by all tests: a tiny random Llama, a byte-level tokenizer, and the demo model."""

from __future__ import annotations

import os
from pathlib import Path

# Nothing in the tests may reach for a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
import pytest
from hypothesis import settings
from mlx.utils import tree_map
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import entropix_mlx
from entropix_mlx.answer.interventions.prose import Place, Surroundings
from entropix_mlx.checkpoints import locate
from entropix_mlx.conversion import convert
from entropix_mlx.conversion.recipe import Recipe
from entropix_mlx.engine.runner import Runner
from entropix_mlx.models.config import LlamaConfig
from entropix_mlx.models.llama.model import Model

settings.register_profile("entropix", max_examples=60, deadline=None)
settings.load_profile("entropix")

TINY = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
}


def make_tiny_model(seed: int = 0, scale: float = 0.5, **changes: object) -> Model:
    """Return a tiny model with random weights: of scale 0.5, it has strong preferences."""
    model = Model(LlamaConfig(**(TINY | changes)))
    keys = iter(mx.random.split(mx.random.key(seed), 200))
    model.update(
        tree_map(lambda p: scale * mx.random.normal(p.shape, key=next(keys)), model.parameters())
    )
    return model


def make_byte_tokenizer(words: str = "") -> TokenizerWrapper:
    """Return a tokenizer whose tokens are the 256 bytes, <s> (256), </s> (257), and some words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>"]
    vocabulary = {character: number for number, character in enumerate([*alphabet, *special])}
    merges = []
    for word in words.replace(" ", " Ġ").split():
        for end in range(1, len(word)):
            if word[: end + 1] not in vocabulary:
                vocabulary[word[: end + 1]] = len(vocabulary)
                merges.append((word[:end], word[end]))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        chat_template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}",
        clean_up_tokenization_spaces=False,
    )
    return TokenizerWrapper(fast, BPEStreamingDetokenizer)


def run_answer(model, tokenizer, prompt, resolved, *, pipelined=True, **more):
    """Return the steps of one answer with resolved settings, which may be forced to begin so."""
    runner = Runner(model, tokenizer, pipelined=pipelined)
    return list(runner.stream(runner.add(prompt, resolved, **more)))


@pytest.fixture(autouse=True)
def own_profiles(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the profiles of whoever runs the tests out of them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let text be inserted anywhere: what a tiny random model writes is no prose."""
    monkeypatch.setattr(
        Surroundings, "place", lambda self, following: Place.SENTENCE if following else None
    )


@pytest.fixture(scope="session")
def tiny_model() -> Model:
    return make_tiny_model()


@pytest.fixture(scope="session")
def byte_tokenizer() -> TokenizerWrapper:
    return make_byte_tokenizer()


@pytest.fixture
def tiny_folder(tmp_path: Path, tiny_model: Model, byte_tokenizer: TokenizerWrapper) -> Path:
    """A loadable model folder, to be damaged."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    convert.save(tiny_model, byte_tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def demo_file() -> Path:
    file = locate.demo_model()
    if file is None:
        pytest.fail("the demo model is missing: make test installs it")
    return file


@pytest.fixture(scope="session")
def demo(demo_file: Path) -> tuple[Model, TokenizerWrapper]:
    return entropix_mlx.load(demo_file)


@pytest.fixture(scope="session")
def demo_folder(demo_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as a folder for mlx-lm, unpacked to float32."""
    folder = tmp_path_factory.mktemp("converted") / "demo"
    return convert.convert(demo_file, folder, Recipe(dequantize=True, dtype="float32"))
