"""Three ranks on this machine: what they compute together, and how they end."""

from __future__ import annotations

import json
import signal

import pytest

from entropix_mlx.commands.exit_codes import LOST
from entropix_mlx.conversion import convert
from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.ranks.launching import ended, launch

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
    codes, told = ended(launch(tmp_path, 3, ["-m", "tests.ranks.program", str(folder)]))
    assert codes == [0, 0, 0], told
    result = json.loads(told[0][0])
    for name, (count, difference) in result["found"].items():
        assert count > 3, name
        assert isinstance(difference, float), (name, difference)
        assert difference < 1e-4, name
    assert result["memory"] < 0.4
    assert [text for rank in told[1:] for text in rank] == [""] * 4


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
