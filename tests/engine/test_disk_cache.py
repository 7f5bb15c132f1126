"""Cached texts on the disk: they come back as they were, or not at all."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.numpy import load_file, save_file

from entropix_mlx.engine import disk_cache
from entropix_mlx.engine.disk_cache import SUFFIX, DiskCache
from entropix_mlx.engine.prompt_cache import PromptCache
from entropix_mlx.engine.runner import Runner
from entropix_mlx.models.tapped.model import TappedModel
from entropix_mlx.settings import Settings
from tests.architectures import make as make_architecture
from tests.conftest import make_byte_tokenizer, make_tiny_model

pytestmark = pytest.mark.slow

PROMPT = [65 + (n * n) % 50 for n in range(100)]
GREEDY = Settings(max_tokens=12, sampler="greedy", seed=1)


def answer(model, cache, prompt=PROMPT):
    """Return the tokens of an answer, and how many of the prompt's were cached."""
    runner = Runner(model, make_byte_tokenizer(), cache=cache)
    slot = runner.add(prompt, runner.resolve(GREEDY))
    tokens = [step.token for step in runner.stream(slot)]
    return tokens, slot.prompt.cached


def ask(model, folder, prompt=PROMPT, key="key", most=2**30):
    """Do the same with a cache of its own, which ends then: all that is left is on the disk."""
    cache = PromptCache(2**30, DiskCache(folder, most, key, model))
    found = answer(model, cache, prompt)
    cache.close()
    return found


def files(folder):
    return sorted(folder.rglob(f"*{SUFFIX}"))


def tapped(model_type, **changes):
    return TappedModel(*make_architecture(model_type, **changes))


def quantized():
    model = tapped("llama", head_dim=32)
    model.quantize_cache(bits=8, group_size=32, start=16)
    return model


MODELS = {
    "llama": make_tiny_model,
    "rotating": lambda: tapped("gemma3_text"),
    "recurrent": lambda: tapped("mamba2"),
    "quantized": quantized,
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_text_comes_back_as_it_was(kind, tmp_path):
    model = MODELS[kind]()
    computed, cached = ask(model, tmp_path)
    assert cached == 0
    again = [*PROMPT, *computed, *PROMPT[:5]]
    expected, _ = answer(model, PromptCache(2**30), again)
    found, cached = ask(MODELS[kind](), tmp_path, again)
    assert found == expected
    assert cached == len(PROMPT) + len(computed) - 1
    other = [*PROMPT[:60], *reversed(PROMPT)]
    assert ask(model, tmp_path, other)[0] == answer(model, PromptCache(0), other)[0]


def test_a_longer_text_replaces_its_beginning(tmp_path, tiny_model):
    computed, _ = ask(tiny_model, tmp_path)
    [first] = files(tmp_path)
    longer = [*PROMPT, *computed, *PROMPT[:20]]
    ask(tiny_model, tmp_path, longer)
    [second] = files(tmp_path)
    assert second != first
    written = second.read_bytes()
    ask(tiny_model, tmp_path, longer)
    assert files(tmp_path) == [second]
    assert second.read_bytes() == written


def test_the_disk_is_bounded(tmp_path, tiny_model):
    ask(tiny_model, tmp_path)
    size = files(tmp_path)[0].stat().st_size
    for n in range(5):
        ask(tiny_model, tmp_path, [n + 1, *PROMPT], most=int(2.5 * size))
        assert sum(file.stat().st_size for file in files(tmp_path)) <= 2.5 * size
    assert ask(tiny_model, tmp_path, [5, *PROMPT])[1] > 0
    assert ask(tiny_model, tmp_path)[1] == 0


def flipped(at):
    def flip(file):
        content = bytearray(file.read_bytes())
        content[int(at * (len(content) - 1))] ^= 16
        file.write_bytes(content)

    return flip


def renamed_folder(file):
    file.unlink()
    file.mkdir()


def with_other_ids(file):
    """Say that the arrays are another text's, as a file would that was put together wrongly."""
    arrays = load_file(file)
    with disk_cache.safe_open(file, "numpy") as content:
        metadata = content.metadata()
    arrays["ids"] = arrays["ids"][:-1]
    save_file(arrays, file, metadata)


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "no file": renamed_folder,
    "garbage": lambda file: file.write_bytes(b"\xff" * 1000),
    "other ids": with_other_ids,
    **{f"flipped at {at}": flipped(at) for at in (0, 0.001, 0.01, 0.3, 0.6, 1)},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_ignored(damage, tmp_path, tiny_model, caplog):
    expected, _ = ask(tiny_model, tmp_path)
    [file] = files(tmp_path)
    DAMAGES[damage](file)
    assert ask(tiny_model, tmp_path) == (expected, 0)
    assert damage == "no file" or "ignored" in caplog.text


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_of_another_model_is_ignored(moved, tmp_path, tiny_model, caplog):
    ask(tiny_model, tmp_path)
    [file] = files(tmp_path)
    if moved:
        ask(tiny_model, tmp_path, [9, *PROMPT], key="other")
        [other] = [one.parent for one in files(tmp_path) if one.parent != file.parent]
        shutil.copy(file, other)
    assert ask(tiny_model, tmp_path, key="other")[1] == 0
    assert ("another model's" in caplog.text) == moved
    other = make_tiny_model(num_hidden_layers=2)
    assert ask(other, tmp_path)[1] == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_cannot_be_written_is_computed(number, tmp_path, tiny_model, monkeypatch, caplog):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    expected, _ = answer(tiny_model, PromptCache(0))
    monkeypatch.setattr(disk_cache, "save_file", fail)
    for _ in range(2):
        assert ask(tiny_model, tmp_path) == (expected, 0)
    assert not files(tmp_path)
    assert os.strerror(number) in caplog.text


def test_a_folder_that_is_none_is_no_error(tmp_path, tiny_model, caplog):
    (tmp_path / "file").write_text("x")
    assert ask(tiny_model, tmp_path / "file")[1] == 0
    assert caplog.text


WRITES = """
import sys
from pathlib import Path
from tests.conftest import make_tiny_model
from tests.engine.test_disk_cache import PROMPT, ask
model = make_tiny_model()
for n in range(10**6):
    ask(model, Path(sys.argv[1]), [n % 200, *PROMPT])
"""


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_wrong(
    tmp_path, tiny_model, caplog
):
    process = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)])
    end = time.monotonic() + 60
    while len(files(tmp_path)) < 3:
        assert time.monotonic() < end
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    expected, _ = answer(tiny_model, PromptCache(0), [0, *PROMPT])
    assert ask(tiny_model, tmp_path, [0, *PROMPT]) == (expected, len(PROMPT))
    assert not caplog.text
