"""Several ranks, started by `mlx.launch` on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from entropix_mlx import cli
from entropix_mlx.errors import UnsupportedModelError
from entropix_mlx.models import ranks
from tests import architectures
from tests.architectures import make
from tests.conftest import make_byte_tokenizer

ROOT = Path(__file__).parents[2]
SIZE = 3


def launch(*command: str) -> str:
    """Return what so many ranks print, which `mlx.launch` puts together."""
    launcher = [Path(sys.executable).parent / "mlx.launch", "-n", str(SIZE), "--backend", "ring"]
    done = subprocess.run(
        [*launcher, "--", sys.executable, *command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout


def test_every_rank_computes_what_the_whole_model_does():
    told = launch("-m", "tests.models.ranks_program", "llama", "qwen3_moe")
    records = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert len(records) == SIZE, told
    for record in records:
        assert max(record["differences"].values()) < 1e-4
        assert record["shared"]
        assert record["least"] == 10


def test_the_command_line_answers_as_one_process_does(tmp_path):
    changes = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}
    architectures.save(*make("llama", **changes), tmp_path / "model")
    make_byte_tokenizer().save_pretrained(tmp_path / "model")
    prompts = tmp_path / "prompts"
    prompts.write_text("one\nanother prompt\na third\n")
    words = ["generate", "--model", tmp_path / "model", "--prompts", prompts, "--n", 2, "-m", 6]
    words = [*map(str, words), "--seed", "3", "--output"]
    assert cli.main([*words, str(tmp_path / "alone")]) == 0
    told = launch("-m", "entropix_mlx", *words, str(tmp_path / "together"))
    assert answers(tmp_path / "together") == answers(tmp_path / "alone"), told


def answers(file: Path) -> list[tuple]:
    records = map(json.loads, file.read_text().splitlines())
    return sorted((record["line"], record["sample"], record["text"]) for record in records)


@pytest.mark.parametrize("words", [["bench"], ["generate", "-p", "x", "--resume", "-o", "file"]])
def test_what_needs_one_process_is_refused(words):
    assert "several ranks" in launch("-m", "entropix_mlx", *words)


def test_a_rank_that_dies_ends_the_others():
    program = (
        "import os, time; from entropix_mlx.models import ranks\n"
        "if ranks.launched().rank() == 1: os._exit(3)\n"
        "time.sleep(600)"
    )
    assert "rank 1 exited with code 3" in launch("-c", program)


class Group:
    """Ranks that were not started."""

    def size(self) -> int:
        return SIZE


@pytest.mark.parametrize(("kind", "message"), [("llama", "num_attention_heads"), ("gpt2", "split")])
def test_what_cannot_be_split_is_refused_by_name(kind, message):
    with pytest.raises(UnsupportedModelError, match=message):
        ranks.split(*make(kind), Group())


def test_one_process_is_alone(monkeypatch):
    monkeypatch.delenv("MLX_RANK", raising=False)
    assert ranks.launched() is None
    assert ranks.share("alone", None) == "alone"
    assert ranks.least(3, None) == 3
