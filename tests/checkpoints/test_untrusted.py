"""Models of a stranger: each of these once hung, leaked, crashed or went wrong in silence."""

import contextlib
import itertools
import json
import os
import re
import sys
from pathlib import Path

import pytest
import transformers
from mlx_lm.tokenizer_utils import load as load_mlx_lm
from mlx_lm.utils import load_tokenizer

from entropix_mlx import generate, load
from entropix_mlx.checkpoints.folder import checked
from entropix_mlx.checkpoints.tokenizers import tokenizer_errors
from entropix_mlx.errors import EntropixError, ModelNotFoundError, TokenizerError, WeightsError
from tests.folders import edit_json

OPENED = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
]


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to(path.name),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused_at_once(tiny_folder, name, make):
    (tiny_folder / name).unlink(missing_ok=True)
    make(tiny_folder / name)
    with pytest.raises(WeightsError, match=f"{name}: "):
        load(tiny_folder)


def test_links_into_the_hubs_cache_are_followed(tmp_path, tiny_folder):
    cache = tmp_path / "hub"
    snapshot = cache / "models--a--b" / "snapshots" / "1234"
    for folder in (snapshot, cache / "blobs", cache / "models--a--b" / "blobs"):
        folder.mkdir(parents=True)
    (cache / "blobs" / "shared").write_text((tiny_folder / "config.json").read_text())
    (cache / "models--a--b" / "blobs" / "own").symlink_to("../../blobs/shared")
    (snapshot / "config.json").symlink_to("../../blobs/own")
    (snapshot / "model.safetensors").write_bytes((tiny_folder / "model.safetensors").read_bytes())
    with checked(snapshot) as view:
        assert json.loads((view / "config.json").read_text())["model_type"] == "llama"
    (cache / "secret").write_text("{}")
    (snapshot / "tokenizer.json").symlink_to("../../../secret")
    with pytest.raises(WeightsError, match=r"tokenizer\.json: "), checked(snapshot):
        pass


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////wAA"}},
    ],
    ids=str,
)
def test_a_panic_in_rust_is_an_error_like_any_other(tiny_folder, changes):
    edit_json(tiny_folder / "tokenizer.json", **changes)
    try:
        _, tokenizer = load(tiny_folder)
        tokenizer.encode("a" * 100)
    except TokenizerError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_a_panic_on_one_text_is_an_error_like_any_other(tiny_folder):
    file = tiny_folder / "tokenizer.json"
    endless = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
    split = endless | {"invert": False}
    byte_level = json.loads(file.read_text())["pre_tokenizer"]
    both = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    edit_json(file, pre_tokenizer=both)
    _, tokenizer = load(tiny_folder)
    with pytest.raises(TokenizerError, match="cannot encode this text"):
        tokenizer.encode("a" * 40 + "!")


def test_ids_without_a_token_are_drawn_as_nothing(tiny_folder):
    file = tiny_folder / "tokenizer.json"
    described = json.loads(file.read_text())
    for token in list(described["model"]["vocab"])[130:250]:
        del described["model"]["vocab"][token]
    file.write_text(json.dumps(described))
    model, tokenizer = load(tiny_folder)
    answer = generate(model, tokenizer, [5, 6], max_tokens=40, sampler="temperature", seed=1)
    assert isinstance(answer, str)


def test_the_tokenizer_is_still_mlx_lms(tiny_folder):
    _, ours = load(tiny_folder)
    theirs = load_mlx_lm(tiny_folder)
    assert isinstance(ours, type(theirs))
    assert ours.encode("é 1") == theirs.encode("é 1")
    assert ours.eos_token_ids == theirs.eos_token_ids
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", ["../x", "a/b/c", "a/..", "a b/c", "a/b?x=1", "é/b"])
def test_what_is_no_hub_id_never_reaches_the_hub(monkeypatch, name):
    fail = lambda *_, **__: pytest.fail("it was asked")  # noqa: E731
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ModelNotFoundError):
        load(name)


OPENED_FILES: list[str] = []
"""What Python opens while `watching`, by an audit hook, which cannot be removed again."""


@pytest.fixture(scope="module")
def watched():
    def note(event, arguments):
        if event == "open" and state["on"]:
            OPENED_FILES.append(str(arguments[0]))

    state = {"on": True}
    sys.addaudithook(note)
    yield OPENED_FILES
    state["on"] = False


def keys_of_transformers():
    """Return every word in transformers' sources of tokenizers that may be a key which names
    files."""
    sources = [*Path(transformers.__file__).parent.glob("tokenization_*.py")]
    sources += Path(transformers.__file__).parent.glob("models/*/tokenization_*.py")
    sources.append(Path(transformers.__file__).parent / "configuration_utils.py")
    words = re.compile(r"\b\w*(?:_files?|_path|_kwargs|_dir|_folder)\b|\binit_\w+|\bsp_model\w*")
    found = {word for source in sources for word in words.findall(source.read_text())}
    return sorted(found | {"vocab", "merges", "token", "subfolder", "revision", "tokenizer_object"})


def read_tokenizer(folder):
    with checked(folder) as view, tokenizer_errors("it cannot be read"):
        return load_tokenizer(view, {"trust_remote_code": False})


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "special_tokens_map.json", "config.json"]
)
def test_no_key_leads_out_of_the_folder(tiny_folder, tmp_path, watched, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    described = json.loads((tiny_folder / "tokenizer.json").read_text())
    added = {"id": 258, "content": "OUTSIDE", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    described["added_tokens"].append(added | flags)
    target = str(outside / f"{name.removesuffix('_config.json').removesuffix('.json')}.4.0.0.json")
    Path(target).write_text(json.dumps(described))
    original = (tiny_folder / name).read_text() if (tiny_folder / name).exists() else "{}"
    values = [target, [target], {"model_file": target, "vocab": target}, str(outside)]
    keys = keys_of_transformers()
    alone = ["configuration_files", "fast_tokenizer_files", "init_inputs", "tokenizer_file"]
    parts = [[key] for key in alone] + [
        keys[start : start + 16] for start in range(0, len(keys), 16)
    ]
    watched.clear()
    for part, value in itertools.product(parts, values):
        changes = dict.fromkeys(part if len(part) == 1 else set(part) - set(alone), value)
        (tiny_folder / name).write_text(json.dumps(json.loads(original) | changes))
        with contextlib.suppress(EntropixError):
            assert "OUTSIDE" not in read_tokenizer(tiny_folder).get_vocab()
    assert not [path for path in watched if path.startswith(str(outside))]
