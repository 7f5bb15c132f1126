"""The bench on a tiny model: what it reports, not how fast anything is."""

import json
import platform
from pathlib import Path

import pytest

from entropix_mlx import cli
from entropix_mlx.lab import bench as module
from entropix_mlx.lab.bench import ENTROPIX, GREEDY, MLX_LM, bench, in_turns, to_figures

pytestmark = pytest.mark.slow


def test_every_contender_has_its_figures(tiny_model, byte_tokenizer):
    seen = []
    report = bench(tiny_model, byte_tokenizer, repeats=1, tokens=3, on_progress=seen.append)
    assert len(seen) == 2
    found = [(one.answers, one.name) for one in report.figures]
    assert found == [(n, name) for n in (1, 8) for name in (MLX_LM, GREEDY, ENTROPIX)]
    for one in report.figures:
        assert 0 < one.low <= one.median <= one.high
        assert (one.ratio is None) == (one.name == MLX_LM)
    assert json.dumps(report.to_dict())


def test_contenders_take_turns_in_both_orders_and_ratios_are_of_one_repeat():
    calls = []
    runs = {name: lambda name=name: calls.append(name) or 2.0 for name in "ab"}
    assert in_turns(runs, 1) == {"a": [2.0], "b": [2.0]}
    assert calls == ["a", "b", "b", "a"], "the first turn is a warm-up"
    repeated = {MLX_LM: [1.0, 10.0, 4.0], ENTROPIX: [2.0, 5.0, 4.0]}
    theirs, ours = to_figures(1, repeated)
    assert (ours.median, ours.low, ours.high, ours.ratio) == (4.0, 2.0, 5.0, 1.0)
    assert theirs.ratio is None


@pytest.fixture
def quick(monkeypatch):
    """The command with one short run of each contender."""
    defaults = module.bench.__kwdefaults__
    monkeypatch.setitem(defaults, "repeats", 1)
    monkeypatch.setitem(defaults, "tokens", 2)


@pytest.mark.usefixtures("quick")
def test_the_table_or_json_goes_to_stdout_and_progress_to_stderr(tiny_folder, tmp_path, capsys):
    run = ["bench", "--model", str(tiny_folder)]
    assert cli.main(run) == 0
    out, err = capsys.readouterr()
    assert "measuring" in err
    assert "measuring" not in out
    assert MLX_LM in out
    assert cli.main([*run, "--json"]) == 0
    out = capsys.readouterr().out
    record = json.loads(out)
    assert record["model"] == "tiny"
    assert {"chip", "memory", "cores", "mlx", "entropix_mlx"} <= record["machine"].keys()
    assert not any(name in out for name in (platform.node(), str(tmp_path), str(Path.home())))
