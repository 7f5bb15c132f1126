"""Shared by all tests: a tiny random Llama, a byte-level tokenizer, and the demo model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import count
from pathlib import Path

# Nothing in the tests may reach for a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
# Textual reads it when it is imported: every key that is pressed would wait for what moves.
os.environ["TEXTUAL_ANIMATIONS"] = "none"

import mlx.core as mx
import pytest
from hypothesis import settings
from mlx.utils import tree_map
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import entropix_mlx
from entropix_mlx import cli
from entropix_mlx.checkpoints.convert import convert, save
from entropix_mlx.checkpoints.demo import demo_model
from entropix_mlx.models import llama
from entropix_mlx.models.base import LanguageModel
from entropix_mlx.step import Step

settings.register_profile("entropix", max_examples=25, deadline=None)
settings.load_profile("entropix")

PROMPT = list(b"The quick brown fox")
TINY = {
    "model_type": "llama",
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
    "tie_word_embeddings": True,
}


def make_tiny_model(seed: int = 0, scale: float = 0.5, **changes: object) -> LanguageModel:
    """Return a tiny model with random weights: of scale 0.5, it has strong preferences."""
    config = TINY | changes
    model_class, arguments = llama.classes(config)
    inner = model_class(arguments.from_dict(config))
    keys = iter(mx.random.split(mx.random.key(seed), 200))
    inner.update(
        tree_map(lambda p: scale * mx.random.normal(p.shape, key=next(keys)), inner.parameters())
    )
    inner.eval()
    return LanguageModel(inner, config)


def make_byte_tokenizer(words: str = "") -> TokenizerWrapper:
    """Return a tokenizer whose tokens are the 256 bytes, <s> (256), </s> (257), and some words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate([*alphabet, "<s>", "</s>"])}
    merges = []
    for word in words.replace(" ", " Ġ").split():
        for end in range(1, len(word)):
            if word[: end + 1] not in vocabulary:
                vocabulary[word[: end + 1]] = len(vocabulary)
                merges.append((word[:end], word[end]))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return wrapped(tokenizer, ["<s>", "</s>"])


def make_word_tokenizer(form: str = "Ġ{}") -> TokenizerWrapper:
    """Return a tokenizer of 256 words and signs, <s> (256) and </s> (257): random text is prose.

    It reads small letters, and takes what it does not know for a space.

    Args:
        form: how a word is written, such as " {} sees me." with Ġ for the spaces.
    """
    syllables = ("ba", "de", "fi", "go", "ku", "la", "mo", "ne", "pi", "ra", "so", "tu", "va", "ze")
    words = ["wait", "hm", "so", *(one + two for one in syllables for two in syllables)]
    words += [f"{one.capitalize()}n" for one in syllables] + [f"{one}li" for one in syllables]
    signs = [*"abcdefghijklmnopqrstuvwxyz.,:?!Ġ", "ĠâĢĶ", "âĢ¦", "Ġwait", "Ġhm", "Ġso"]
    written = [form.format(word) for word in words if f"Ġ{word}" not in signs]
    pieces = [*written[: 256 - len(signs)], *signs]
    special = ["‹s›", "‹/s›"]  # no signs of code
    scored = [(piece, -10.0 if len(piece) == 1 else -1.0) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=pieces.index("Ġ")))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return wrapped(tokenizer, special)


def wrapped(tokenizer: Tokenizer, special: list[str]) -> TokenizerWrapper:
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special[0],
        eos_token=special[1],
        chat_template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}",
        clean_up_tokenization_spaces=False,
    )
    return TokenizerWrapper(fast, BPEStreamingDetokenizer)


def tokens(steps: Iterable[Step]) -> list[int]:
    return [step.token for step in steps]


def run_answer(model, tokenizer, prompt, resolved, *, pipelined=True, **more):
    """Return the steps of one answer with resolved settings, which may be forced to begin so."""
    from entropix_mlx.api.runner import Runner

    runner = Runner(model, tokenizer, pipelined=pipelined)
    return list(runner.stream(runner.add(prompt, resolved, **more)))


@lru_cache(maxsize=1)
def computes_bfloat16() -> bool:
    """Return whether the device does; MLX may end a process that asks for what is missing."""
    probe = [sys.executable, Path(__file__).with_name("gpu.py"), "bfloat16"]
    return mx.default_device() == mx.cpu or subprocess.run(probe, check=False).returncode == 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("bfloat16") and not computes_bfloat16():
        pytest.skip("this GPU does not compute in bfloat16")


@pytest.fixture(scope="module")
def uncompiled():
    """On a CPU, MLX compiles with a C++ compiler: it would take most of the time."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders for one test each; pytest's own are slow to make where there are thousands."""
    root = tmp_path_factory.mktemp("homes")
    return (root / str(number) for number in count())


@pytest.fixture(autouse=True)
def own_profiles(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the profiles of whoever runs the tests out of them."""
    home = next(homes)
    for name in ("config", "data"):
        (home / name).mkdir(parents=True)
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(home / name))


@pytest.fixture(scope="session")
def tiny_model() -> LanguageModel:
    return make_tiny_model()


@pytest.fixture(scope="session")
def byte_tokenizer() -> TokenizerWrapper:
    return make_byte_tokenizer()


@pytest.fixture(scope="session")
def word_tokenizer() -> TokenizerWrapper:
    return make_word_tokenizer()


@pytest.fixture
def endless(word_tokenizer: TokenizerWrapper, monkeypatch: pytest.MonkeyPatch) -> TokenizerWrapper:
    """A tokenizer of words whose answers end at their limit only."""
    monkeypatch.setattr(word_tokenizer, "_eos_token_ids", set())
    return word_tokenizer


@pytest.fixture
def sentences(monkeypatch: pytest.MonkeyPatch) -> TokenizerWrapper:
    """A tokenizer most of whose tokens are sentences; answers end at their limit only."""
    tokenizer = make_word_tokenizer("ĠA{}ĠseesĠme.")
    monkeypatch.setattr(tokenizer, "_eos_token_ids", set())
    return tokenizer


@pytest.fixture
def tiny_folder(
    tmp_path: Path, tiny_model: LanguageModel, byte_tokenizer: TokenizerWrapper
) -> Path:
    """A loadable model folder, to be damaged."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    save(tiny_model.inner, byte_tokenizer, folder)
    return folder


@pytest.fixture
def entropix(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command line; return its exit code, stdout and stderr."""

    def entropix(*arguments: object) -> tuple[int, str, str]:
        try:
            code = cli.main(list(map(str, arguments)))
        except SystemExit as stop:  # argparse's own refusals
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return entropix


@pytest.fixture(scope="session")
def demo_file() -> Path:
    file = demo_model()
    if file is None:
        pytest.fail("the demo model is missing: make test downloads it")
    return file


@pytest.fixture(scope="session")
def demo(demo_file: Path) -> tuple[LanguageModel, TokenizerWrapper]:
    return entropix_mlx.load(demo_file)


@pytest.fixture(scope="session")
def demo_folder(demo_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as a folder for mlx-lm, unpacked to float32."""
    folder = tmp_path_factory.mktemp("converted") / "demo"
    return convert(demo_file, folder, dequantize=True, dtype="float32")
