"""Models of a stranger: each of these once hung, leaked, crashed or went wrong in silence."""

import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from mlx_lm.tokenizer_utils import load as load_mlx_lm

from entropix_mlx import generate, load
from entropix_mlx.checkpoints.model_files import check_files
from entropix_mlx.checkpoints.torch_file import open_torch_file
from entropix_mlx.errors import EntropixError, TokenizerError, WeightsError
from tests.folders import edit_json

OPENED = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "additional_chat_templates/default.jinja",
]


def place(folder, name):
    """Return the path of a file after removing it and making the folder that it is in."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def link_to(target):
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to(path.name),
        *map(link_to, ["/dev/zero", "/etc/passwd", "../../../../../etc/passwd"]),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused_at_once(tiny_folder, name, make):
    make(place(tiny_folder, name))
    with pytest.raises(WeightsError, match=f"{name}: "):
        load(tiny_folder)


def test_a_linked_folder_of_templates_is_refused(tiny_folder, tmp_path):
    (tmp_path / "secrets").mkdir()
    (tiny_folder / "additional_chat_templates").symlink_to("../secrets")
    with pytest.raises(WeightsError, match="additional_chat_templates: "):
        load(tiny_folder)


@pytest.mark.parametrize("name", ["model.gguf", "consolidated.00.pth"])
def test_a_fifo_of_another_format_is_refused(tmp_path, name):
    (tmp_path / "params.json").write_text('{"dim": 32, "n_layers": 1, "n_heads": 2}')
    os.mkfifo(tmp_path / name)
    with pytest.raises(EntropixError):
        load(tmp_path / name if name.endswith("gguf") else tmp_path)


def test_links_into_the_hubs_cache_are_followed(tmp_path):
    cache = tmp_path / "hub"
    snapshot = cache / "models--a--b" / "snapshots" / "1234"
    for folder in (snapshot, cache / "blobs", cache / "models--a--b" / "blobs"):
        folder.mkdir(parents=True)
    (cache / "blobs" / "shared").write_text("{}")
    (cache / "models--a--b" / "blobs" / "own").symlink_to("../../blobs/shared")
    (snapshot / "config.json").symlink_to("../../blobs/own")
    check_files(snapshot)
    (cache / "secret").write_text("{}")
    (snapshot / "tokenizer.json").symlink_to("../../../secret")
    with pytest.raises(WeightsError, match=r"tokenizer\.json: "):
        check_files(snapshot)


@pytest.mark.parametrize(
    "ids", ["x", "<|im_end|>", [2, "a"], [2, None], {"2": 1}, 2.5, True, [[2]]]
)
@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_end_of_text_ids_that_are_no_numbers_are_refused(tiny_folder, name, ids):
    edit_json(tiny_folder / name, eos_token_id=ids)
    with pytest.raises(TokenizerError, match=f"{name}: eos_token_id"):
        load(tiny_folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000])
def test_a_broken_generation_config_is_not_passed_over(tiny_folder, text):
    (tiny_folder / "generation_config.json").write_text(text)
    with pytest.raises(TokenizerError, match=r"generation_config\.json: "):
        load(tiny_folder)


def test_a_special_token_that_is_empty_is_refused(tiny_folder):
    edit_json(tiny_folder / "tokenizer_config.json", unk_token="")
    with pytest.raises(TokenizerError, match="tiny: "):
        load(tiny_folder)


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
    for token in list(described["model"]["vocab"])[10:120]:
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


def write_pth(file, shape, stride, entries=0):
    """Write a file of one tensor whose pickle is put together by hand."""
    storage = b"".join(
        [
            b"(X\7\0\0\0storagectorch\nFloatStorage\n",
            b"X\1\0\0\0000X\3\0\0\0cpuK\x01tQ",
        ]
    )
    body = pickle.dumps(shape, 2)[2:-1] + pickle.dumps(stride, 2)[2:-1]
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + body + b"tR"
    described = b"\x80\x02}X\1\0\0\0a" + rebuild + b"s."
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/data.pkl", described)
        archive.writestr("x/data/0", np.float32(7).tobytes())
        for number in range(entries):
            archive.writestr(f"x/{number}", b"")
    return file


def test_a_tensor_of_one_number_is_read(tmp_path):
    tensors = open_torch_file(write_pth(tmp_path / "a.pth", (1, 1), (1, 1)))
    assert tensors["a"].read().tolist() == [[7.0]]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((), "without a shape"),
        ((1,) * 60_000, "too many dimensions"),
        ((2**40,) * 20_000, "too many dimensions"),
        ((2**47,) * 8, "do not lie in order"),
    ],
    ids=["none", "ones", "many", "huge"],
)
def test_an_absurd_shape_is_refused_at_once(tmp_path, shape, message):
    file = write_pth(tmp_path / "a.pth", shape, (1,))
    with pytest.raises(WeightsError, match=message):
        open_torch_file(file)


def test_too_many_entries_are_refused(tmp_path):
    with pytest.raises(WeightsError, match="parts"):
        open_torch_file(write_pth(tmp_path / "a.pth", (1,), (1,), entries=10_001))


def test_numbers_that_were_changed_are_refused(tmp_path):
    file = write_pth(tmp_path / "a.pth", (1,), (1,))
    file.write_bytes(file.read_bytes().replace(np.float32(7).tobytes(), np.float32(8).tobytes()))
    with pytest.raises(WeightsError, match="are damaged"):
        open_torch_file(file)["a"].read()
