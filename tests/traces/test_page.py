"""A trace as one HTML file: it holds everything, and a model's words in it are only words."""

import json
import re
from dataclasses import replace

import pytest

from entropix_mlx import Profile, cli
from entropix_mlx.step import Strategy
from entropix_mlx.traces.explain import explain
from entropix_mlx.traces.page import recorded, render
from entropix_mlx.traces.trace import read_trace
from entropix_mlx.traces.trace import recorded as written
from tests.steps import HEADER, make_step, make_steps, make_trace

HOSTILE = [
    "</script><b>",
    "<!--",
    "\"'&amp;",
    "\x1b[31m",
    "\x00",
    "\udce9",
    "\u2028",
    "$vocabulary",
]


@pytest.fixture
def steps():
    hostile = [make_step(i, text, list(Strategy)[i % 7]) for i, text in enumerate(HOSTILE)]
    return hostile + make_steps()[len(hostile) :]


def test_every_measurement_is_in_the_page(steps):
    shown = recorded(make_trace(steps))
    for step, record, why in zip(steps, shown["steps"], shown["why"], strict=True):
        assert record["entropy"] == pytest.approx(step.entropy, rel=1e-6)
        assert record["strategy"] == step.strategy
        assert why["action"] == explain(Profile.load(), step).action
    assert shown["steps"][3]["text"] == "␛[31m"


def test_only_finite_thresholds_reach_the_page(steps):
    thresholds = {"branch_min_varentropy": float("inf"), "low_entropy": float("-inf")}
    profile = Profile.load().replace({"thresholds": thresholds})
    steps[0] = replace(steps[0], logprob=float("-inf"))
    shown = recorded(make_trace(steps, profile=profile))
    json.dumps(shown, allow_nan=False)
    assert shown["map"]["tree"]
    assert recorded(make_trace(steps, sampler="min_p"))["map"]["tree"] == []


def test_the_command_writes_a_small_page_without_links(steps, tmp_path, capsys):
    recording, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    list(written(steps, recording, HEADER))
    assert cli.main(["view", str(recording), "--html", str(page)]) == 0
    assert capsys.readouterr().out == ""
    text = page.read_text(encoding="utf-8")
    assert text == render(read_trace(recording))
    assert len(text.encode()) - len(json.dumps(recorded(make_trace(steps)))) < 150_000
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert HOSTILE[0] not in text


@pytest.mark.parametrize("paths", [("absent", "page.html"), ("trace", "."), ("trace", "trace")])
def test_a_page_that_cannot_be_written_changes_nothing(steps, tmp_path, capsys, paths):
    list(written(steps, tmp_path / "trace", HEADER))
    before = (tmp_path / "trace").read_bytes()
    trace, page = (str(tmp_path / path) for path in paths)
    assert cli.main(["view", trace, "--html", page]) == 2
    assert capsys.readouterr().err.startswith("entropix: ")
    assert (tmp_path / "trace").read_bytes() == before
