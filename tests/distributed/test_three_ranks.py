"""Ranks on this machine: what they compute together, and how they end."""

from __future__ import annotations

import json
import signal

import mlx.nn as nn
import pytest

from entropix_mlx import cli
from entropix_mlx.checkpoints.skeleton import BY_TOKENS
from entropix_mlx.commands.shared.output import LOST, USAGE
from entropix_mlx.conversion import convert
from entropix_mlx.distributed.environment import PATIENCE
from tests import architectures
from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.distributed.launching import ended, launch, mlx_launch

pytestmark = pytest.mark.slow

GENERATE = ["-m", "entropix_mlx", "generate", "--prompt", "hello", "--seed", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks") / "model"
    folder.mkdir()
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3}
    sizes |= {"hidden_size": 48, "num_hidden_layers": 2}
    convert.save(make_tiny_model(**sizes), make_byte_tokenizer(), folder)
    return folder


def test_all_ways_of_using_a_model_compute_the_same_on_three_ranks(folder, tmp_path):
    assert compared(tmp_path, 3, folder)["memory"] < 0.4


TIED = {"tie_word_embeddings": True}
UNEVEN = {"vocab_size": 259}
"""Tokens of which two ranks do not have as many."""


@pytest.mark.parametrize(
    ("kind", "changes", "packed", "ways"),  # recurrent layers' state takes no guesses back
    [
        ("qwen3_5", {}, False, ["forks", "thinks", "chat"]),
        ("qwen3_moe", TIED | UNEVEN, False, ["forks", "batch"]),
        ("deepseek_v3", UNEVEN, True, ["guesses", "read", "called"]),
    ],
)
def test_models_of_mlx_lm_compute_the_same_on_two_ranks(tmp_path, kind, changes, packed, ways):
    made, config = architectures.make(kind, **changes)
    if packed:  # the layers with a row for each token
        sizes = {"group_size": 32, "bits": 4}
        nn.quantize(made, **sizes, class_predicate=lambda path, _: path.endswith(BY_TOKENS))
        config |= {"quantization": sizes}
    architectures.save(made, config, tmp_path)
    make_byte_tokenizer().save_pretrained(tmp_path)
    result = compared(tmp_path, 2, tmp_path, *ways)
    assert list(result["found"]) == ways
    assert result["memory"] < 0.6


def compared(tmp_path, size, folder, *names):
    """Return what the program says of a model, all of which was the same."""
    command = ["-m", "tests.distributed.program", str(folder), *names]
    codes, told = ended(launch(tmp_path, size, command))
    assert codes == [0] * size, told
    result = json.loads(told[0][0])
    for name, (count, difference) in result["found"].items():
        assert count > 3, name
        assert isinstance(difference, float), (name, difference)
        assert difference < 1e-4, name
    assert not any(text for rank in told[1:] for text in rank)
    return result


def test_a_lost_rank_ends_all_with_one_message(folder, tmp_path):
    lost = 2
    command = [*GENERATE, "--model", str(folder), "-m", "200"]
    ranks = launch(tmp_path, 3, command)
    if ranks[0].stdout.read(1):  # the answer has begun
        ranks[lost].send_signal(signal.SIGKILL)
    codes, told = ended(ranks)
    assert all(codes)
    assert codes[1] == LOST
    told = [line for _, stderr in told for line in stderr.splitlines() if "entropix: " in line]
    assert len(told) == 1
    assert f"rank {lost} (127.0.0.1) was lost" in told[0]


def test_another_version_on_one_rank_is_refused_before_anything_is_loaded(tmp_path):
    other = tmp_path / "other" / "mlx-0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Name: mlx\nVersion: 0.1\n")
    command = [*GENERATE, "--model", str(tmp_path / "none")]
    codes, told = ended(launch(tmp_path, 2, command, [other.parent]))
    assert codes == [USAGE, USAGE]
    assert "rank 1 (127.0.0.1) has mlx 0.1, and rank 0 has" in told[0][1]
    assert "install the same versions" in told[0][1]
    assert told[1] == ("", "")


def test_another_model_on_one_rank_is_refused_before_anything_is_loaded(tmp_path):
    command = [*GENERATE, "--model", str(tmp_path / "none")]
    codes, told = ended(launch(tmp_path, 2, command, last=["--model", str(tmp_path / "other")]))
    assert codes == [USAGE, USAGE]
    assert "rank 1 (127.0.0.1)" in told[0][1]
    assert "--model" in told[0][1]


def test_a_rank_that_is_lost_before_all_have_come_ends_all_with_one_message(tmp_path, monkeypatch):
    monkeypatch.setenv(PATIENCE, "2")
    ranks = launch(tmp_path, 2, [*GENERATE, "--model", str(tmp_path / "none")])
    ranks[0].kill()
    codes, told = ended(ranks)
    assert codes[1] == LOST
    assert "rank 0 (127.0.0.1) " in told[1][1]
    assert told[1][1].count("entropix: ") == 1


def test_ranks_answer_shares_of_the_prompts_and_go_on_where_they_were_stopped(folder, tmp_path):
    prompts, file, alone = (tmp_path / name for name in ("prompts.txt", "answers", "alone"))
    prompts.write_text("one\nanother\na third one\nfour\n5\n")
    words = ["generate", "--model", folder, "--prompts", prompts, "--n", 2, "-m", 4, "--seed", 1]
    assert cli.main([*map(str, words), "--output", str(alone)]) == 0
    shared = [*words, "--mode", "data", "--output", file]

    told = mlx_launch(2, *shared)
    assert answered(file) == sorted(answered(alone)), told
    assert [path.name for path in tmp_path.glob("answers*")] == ["answers"]

    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:3]))
    (tmp_path / "answers.rank-1").write_text(lines[0] + lines[-1])  # as if stopped while joining
    told = mlx_launch(2, *shared, "--resume")
    assert answered(file) == sorted(answered(alone)), told
    assert [path.name for path in tmp_path.glob("answers*")] == ["answers"]


def answered(file):
    """Return line, sample, seed and text of the answers in a file."""
    records = map(json.loads, file.read_text().splitlines())
    return [tuple(record[key] for key in ("line", "sample", "seed", "text")) for record in records]


@pytest.mark.parametrize(("given", "message"), [(True, "rank 1 (127.0.0.1) "), (False, "--output")])
def test_shares_of_other_prompts_or_without_a_file_are_refused(folder, tmp_path, given, message):
    file, other = tmp_path / "answers", tmp_path / "other"
    other.mkdir()
    (other / "LICENSE").write_text("another prompt\n")
    (other / "sitecustomize.py").write_text(f"import os\nos.chdir({str(other)!r})\n")
    words = ["-m", "entropix_mlx", "generate", "--model", str(folder), "--prompts", "LICENSE"]
    words += ["--mode", "data", *(["--output", str(file)] if given else [])]
    codes, told = ended(launch(tmp_path, 2, words, [other]))
    assert codes == [USAGE, USAGE], told
    assert message in told[0][1]
    assert not file.exists()
