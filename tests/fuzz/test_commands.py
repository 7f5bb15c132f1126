"""Command lines and model files that make no sense: a message or a true result, no more."""

import json
import shutil

import pytest

from tests.fuzz.conftest import times
from tests.fuzz.mutations import ARGUMENTS, damaged_bytes, damaged_json

SETTINGS = [
    "--sampler", "--seed", "--max-tokens", "--profile", "--set", "--temp", "--top-p", "--top-k",
    "--min-p", "--attention-layers", "--top-logprobs",
    "--trace", "--color", "--system-prompt", "--prompt",
]  # fmt: skip
FLAGS = ["--no-think", "--no-branch", "--json", "--jsonl", "--ignore-chat-template"]
OTHERS = {
    "models": [""],
    "convert": ["--mlx-path", "--dtype", "--q-bits", "--q-group-size", "--quantize", "--hf-path"],
    "calibrate": ["--max-tokens", "--seed", "--output", "--show"],
    "view": ["--html", ""],
    "bench": ["--model"],
    "eval": [
        *("--limit", "--n", "--seed", "--examples", "--temp", "--max-tokens"),
        *("--task", "--batch", "--arm", ""),
    ],
    "serve": ["--port", "--host", "--batch", "--cache-memory", "--api-key-file"],
}
"""Options that are tried with anything, without a model: they must fail before one is loaded."""
FEW = 30
"""Of fewer answers, none may have had options that make sense."""


def test_the_options_of_an_answer(run, tiny_folder, random):
    answered = 0
    for _ in times(30):
        options = ["-p", "Hi", "--seed", "1", "-m", "3"]
        for _ in range(random.choice((1, 1, 2, 3))):
            options += [random.choice(SETTINGS), random.choice(ARGUMENTS)]
        options += random.sample(FLAGS, random.choice((0, 0, 1, 2)))
        command = ["generate", "--model", tiny_folder, *options]
        # A limit of tokens that the fuzz did not choose: an answer of any length takes its time.
        command += ["-m", "3"]
        result = run(*command, input="from stdin")
        answered += result["code"] == 0
        if result["code"] == 0 and "--json" in options:
            json.loads(result["out"])
    assert answered or len(times(30)) < FEW, "some options make sense"


def test_the_options_of_other_commands(run, random):
    for _ in times(50):
        command = random.choice(list(OTHERS))
        arguments = [command]
        for _ in range(random.choice((1, 2, 3))):
            arguments += [random.choice(OTHERS[command]), random.choice(ARGUMENTS)]
        arguments = [a for a in arguments if a]
        if command not in ("profile", "models", "view"):
            name = "--hf-path" if command == "convert" else "--model"
            arguments += [name, "/absent/model"]
        run(*arguments)


@pytest.fixture
def model(tiny_folder, tmp_path):
    """A copy of the tiny model, to be damaged again and again."""

    def copy():
        folder = tmp_path / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        return shutil.copytree(tiny_folder, folder)

    return copy


NAMES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]


def test_the_fields_of_a_model(run, model, tmp_path, random):
    for _ in times(15):
        folder = model()
        file = folder / random.choice(NAMES)
        content = json.loads(file.read_text()) if file.exists() else {"eos_token_id": [257]}
        file.write_text(damaged_json(content, random))
        what = f"{file.name}: {file.read_text()[:3000] if file.name != 'tokenizer.json' else ''}"
        run("generate", "--model", folder, "-p", "Hi", "-m", "2", what=what)
        out = folder.with_name("out")
        shutil.rmtree(out, ignore_errors=True)
        run("convert", "--hf-path", folder, "--mlx-path", out, what=what)


def test_the_bytes_of_a_model(run, model, tmp_path, random):
    for _ in times(10):
        folder = model()
        file = folder / random.choice([*NAMES[:3], "model.safetensors"])
        content = file.read_bytes()
        if file.suffix == ".safetensors":  # its header; wrong weights are no fault of the file
            end = 8 + int.from_bytes(content[:8], "little")
            content = damaged_bytes(content[:end], random) + content[end:]
        else:
            content = damaged_bytes(content, random)
        file.write_bytes(content)
        run("generate", "--model", folder, "-p", "Hi", "-m", "2", what=file.name)
        run("models", tmp_path, what=file.name)
