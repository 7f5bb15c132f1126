"""A trace as one HTML file: it holds everything, and a model's words in it are only words."""

import json
import re
from dataclasses import replace

import pytest

from entropix_mlx import Profile, cli
from entropix_mlx.step import Alternative, Branch, Fork, Origin, Strategy, first_divergence
from entropix_mlx.traces.explain import explain
from entropix_mlx.traces.page import recorded, render
from entropix_mlx.traces.trace import read_trace
from entropix_mlx.traces.trace import recorded as written
from tests.steps import HEADER, make_step, make_trace

HOSTILE = [
    *("</script><script>alert(1)</script>", "<b>bold</b>", "&amp;", "\"quoted'", "<!--"),
    *("\x1b[31m", "\x00", "\udce9", "\u2028", "", "$vocabulary", "<img src=x onerror=alert(1)>"),
]


@pytest.fixture
def steps():
    """An answer of every strategy, with an insertion and a fork, in hostile words."""
    made = [make_step(i, text, list(Strategy)[i % 7]) for i, text in enumerate(HOSTILE)]
    branches = tuple(Branch((1, 2), f"branch {n} <b>", -1.0 - n, 2.0, lead=0.5) for n in range(3))
    made[4] = replace(made[4], strategy=Strategy.THINK, origin=Origin.INSERTED, rolled_back=1)
    made[6] = replace(made[6], strategy=Strategy.BRANCH, fork=Fork(branches, 1))
    made[8] = replace(made[8], top_logprobs=(Alternative(1, "</script>", -0.25),))
    return made


def test_every_measurement_is_in_the_page(steps):
    shown = recorded(make_trace(steps))
    for step, record, why in zip(steps, shown["steps"], shown["why"], strict=True):
        assert record["entropy"] == pytest.approx(step.entropy, rel=1e-6)
        assert record["strategy"] == step.strategy
        assert why["action"] == explain(Profile.load(), step).action
    assert shown["steps"][8]["top_logprobs"][0]["text"] == "</script>"
    assert shown["steps"][5]["text"] == "␛[31m"


def test_infinite_numbers_never_reach_the_page(steps):
    thresholds = {"branch_min_varentropy": float("inf"), "low_entropy": float("-inf")}
    profile = Profile.load().replace({"thresholds": thresholds})
    steps[0] = replace(steps[0], logprob=float("-inf"))
    shown = recorded(make_trace(steps, profile=profile))
    json.dumps(shown, allow_nan=False)
    assert shown["map"]["tree"]


def test_a_sampler_without_thresholds_has_no_regions(steps):
    assert recorded(make_trace(steps, sampler="min_p"))["map"]["tree"] == []


def test_the_page_needs_no_network_and_is_small(steps):
    text = render(make_trace(steps))
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    data = len(json.dumps(recorded(make_trace(steps))))
    assert len(text.encode()) - data < 150_000


def test_the_command_writes_a_page(steps, tmp_path, capsys):
    recording, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    list(written(steps, recording, HEADER))
    assert cli.main(["view", str(recording), "--html", str(page)]) == 0
    assert capsys.readouterr().out == ""
    assert page.read_text(encoding="utf-8") == render(read_trace(recording))
    for trace, file in (("absent", page), (recording, tmp_path)):
        assert cli.main(["view", str(trace), "--html", str(file)]) == 2
        assert capsys.readouterr().err.startswith("entropix: ")
    before = recording.read_bytes()
    assert cli.main(["view", str(recording), "--html", str(recording)]) == 2
    assert recording.read_bytes() == before


def test_two_answers_part_where_a_token_differs(steps):
    other = [*steps[:3], replace(steps[3], token=999, text="else"), *steps[4:9]]
    assert first_divergence(steps, other) == 3
    assert first_divergence(steps, steps[:5]) == 5
