"""Command lines and model files that make no sense: a message or a true result, no more."""

import json
import shutil
from typing import get_args

import pytest

from tests.fuzz.conftest import OPTIONS, spelled, times, without_model
from tests.fuzz.mutations import ARGUMENTS, damaged_bytes, damaged_json

FEW = 30
"""Of fewer answers, none may have had options that make sense."""
LOADED = ("--model", "--adapter-path", "--config", "--prompts", "--output")
"""Options that would take the place of the tiny model, or of the only prompt."""


def drawn(random, command):
    """Return one to three options of a command, each with anything as its value."""
    options = random.sample(OPTIONS[command], random.choice((1, 2, 3)))
    given = []
    for option in options:
        switch = bool in (option.hint, *get_args(option.hint))
        given += [*spelled(option), *([] if switch else [random.choice(ARGUMENTS)])]
    return given


def test_the_options_of_an_answer(run, tiny_folder, random):
    answered = 0
    for _ in times(60):
        options = drawn(random, "generate")
        if set(options) & set(LOADED):
            continue
        # The limit of tokens comes last: an answer of any length takes its time.
        command = ["generate", "--model", tiny_folder, "-p", "Hi", "--seed", "1", *options, "-m", 3]
        result = run(*command, input="from stdin")
        answered += result["code"] == 0
        if result["code"] == 0 and "--json" in options:
            json.loads(result["out"])
    assert answered or len(times(60)) < FEW, "some options make sense"


@pytest.mark.parametrize("command", OPTIONS)
def test_the_options_of_every_command(run, random, command):
    for _ in times(10):
        run(*without_model(command), *drawn(random, command))


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
        run("convert", "--model", folder, "--output", out, what=what)


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
