"""The bench on a tiny model: what it reports, not how fast anything is."""

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from entropix_mlx import cli
from entropix_mlx.commands.bench import FORM
from entropix_mlx.errors import BenchError
from entropix_mlx.lab.bench import batches, decoding
from entropix_mlx.lab.bench.bench import bench
from entropix_mlx.lab.bench.decoding import start
from entropix_mlx.lab.bench.figures import Effort, in_turns, to_figures
from entropix_mlx.lab.bench.pair import (
    ALL,
    GREEDY,
    LAST,
    PROMPT,
    SAMPLED,
    UNINTERRUPTED,
    made_up_cache,
    make_pair,
)

pytestmark = pytest.mark.slow

TINY = Effort(
    repeats=1,
    contexts=(16, 24, 9999),
    tokens=3,
    prompt=6,
    widths=(3,),
    depth=3,
    prefix=12,
    at_once=(1, 3),
    passes=(1, 3),
    speculation_tokens=12,
    speculation_samplers=("greedy",),
)


@pytest.fixture(scope="module")
def pair(tiny_model, byte_tokenizer):
    with make_pair(tiny_model, byte_tokenizer) as pair:
        yield pair


@pytest.fixture
def no_processes(monkeypatch):
    """Starting two programs takes seconds."""
    started = []
    monkeypatch.setattr(decoding, "start", started.append)
    return started


def test_every_row_is_there(tiny_model, byte_tokenizer, no_processes):
    seen = []
    report = bench(tiny_model, byte_tokenizer, TINY, on_progress=seen.append)
    sections = dict.fromkeys(row.section for row in report.rows)
    assert list(sections) == [
        *("start-up", "decoding", "peak memory", "prefill", "first token"),
        *("fork, time", "fork, memory", "many answers at once", "a pass of several tokens"),
        "speculation",
    ]
    assert len(seen) == 7
    assert {command[0] for command in no_processes} == {"mlx_lm", "entropix_mlx"}
    for row in report.rows:
        assert 0 < row.low <= row.median <= row.high
    decoded = [row for row in report.rows if row.section == "decoding"]
    cases = {row.case for row in decoded}
    assert cases == {"context 16", "context 24"}, "the model cannot hold the other"
    assert {row.name for row in decoded} == {GREEDY, SAMPLED, LAST, ALL}
    ours = next(row for row in decoded if row.name == LAST)
    assert [ratio.other for ratio in ours.ratios] == [GREEDY, SAMPLED]
    assert json.dumps(report.to_dict())
    many = [row for row in report.rows if row.section == "many answers at once"]
    assert [row.name for row in many] == [GREEDY, SAMPLED, LAST] * 2


def test_forks_have_all_their_branches_and_stay_within_the_context(pair):
    limit = pair.model.config.max_position_embeddings
    cases = {row.case for row in batches.measure_forks(pair, replace(TINY, prefix=9999))}
    assert cases == {f"3 × 3 tokens after {limit - 4}"}
    assert batches.measure_forks(pair, replace(TINY, depth=limit)) == []
    forking = UNINTERRUPTED.replace({"branch": batches.FORKED | {"width": 3, "depth": 4}})
    cache = made_up_cache(pair.model, 12)
    first, *rest = pair.ours(PROMPT, 4, prompt_cache=cache, profile=forking)
    assert [len(branch.tokens) for branch in first.fork.branches] == [4, 4, 4]
    assert [step.fork for step in rest] == [None] * 3


def test_contenders_take_turns_in_both_orders_and_ratios_are_of_one_repeat():
    calls = []
    contenders = {name: lambda name=name: calls.append(name) or 1.0 for name in "ab"}
    assert in_turns(contenders, 2) == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert calls == ["a", "b", "b", "a"]
    repeated = {"theirs": [1.0, 10.0, 4.0], "ours": [2.0, 5.0, 4.0]}
    _, row = to_figures("s", "c", "s", repeated, ["theirs"])
    (ratio,) = row.ratios
    assert (row.median, row.low, row.high) == (4.0, 2.0, 5.0)
    assert (ratio.median, ratio.low, ratio.high) == (1.0, 0.5, 2.0)


def test_failures_are_errors_of_their_own(tiny_model, byte_tokenizer, monkeypatch):
    with pytest.raises(BenchError, match="not_there"):
        start(["mlx_lm_that_is_not_there", "generate"])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("entropix_mlx.lab.bench.pair.save", full)
    with pytest.raises(BenchError, match="TMPDIR"):
        bench(tiny_model, byte_tokenizer, TINY)


@pytest.mark.usefixtures("no_processes")
def test_the_table_or_json_goes_to_stdout_and_progress_to_stderr(monkeypatch, tiny_folder, capsys):
    monkeypatch.setattr("entropix_mlx.lab.bench.figures.QUICK", TINY)
    run = ["bench", "--model", str(tiny_folder), "--quick"]
    assert cli.main(run) == 0
    out, err = capsys.readouterr()
    assert "measuring: decoding" in err
    assert "measuring" not in out
    headings = [line for line in out.splitlines() if line.isupper()]
    assert len(headings) == len(set(headings)) == 10
    assert "÷ mlx-lm greedy" in out
    assert cli.main([*run, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["model"] == "tiny"
    assert record["machine"]["cores"] >= 1


@pytest.mark.usefixtures("no_processes")
def test_a_report_to_submit_names_neither_the_user_nor_a_folder(
    monkeypatch, tiny_folder, tmp_path, entropix
):
    monkeypatch.setattr("entropix_mlx.lab.bench.figures.QUICK", TINY)
    run = ("bench", "--model", tiny_folder, "--quick", "--submit")
    code, _, err = entropix(*run, tmp_path / "missing" / "report.json")
    assert (code, "measuring" in err) == (2, False), "refused before anything is measured"
    code, _, err = entropix(*run, tmp_path / "report.json")
    assert (code, FORM in err) == (0, True)
    text = (tmp_path / "report.json").read_text("utf-8")
    assert not any(name in text for name in (platform.node(), str(tmp_path), str(Path.home())))
    record = json.loads(text)
    assert {"chip", "memory", "mlx", "entropix_mlx"} <= record["machine"].keys()
    assert record["rows"]
