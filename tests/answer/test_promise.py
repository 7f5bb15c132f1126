"""Promises: the risk follows when the questions change, and the state outlives its process."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from entropix_mlx import cli
from entropix_mlx.answer.promise import (
    Mark,
    Promise,
    PromiseState,
    least_left_out,
    promises_file,
)
from entropix_mlx.errors import ConfigurationError, PromptError
from entropix_mlx.lab.evaluation.confidence import expected_threshold
from entropix_mlx.profiles.confidence import AnswerMetrics

RISK = 0.2
LENGTH = 400
KINDS = {"sums": (0.0, 1.0), "facts": (1.5, 0.0)}
"""Of a kind: how much surer its answers look, and how much more often they are right."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def stream(seed):
    """Return scores and grades of sums, then facts, then sums."""
    source = np.random.default_rng(seed)
    scores, right = [], []
    for kind in ("sums", "facts", "sums"):
        look, truth = KINDS[kind]
        sureness = source.normal(size=LENGTH)
        scores.append(look + sureness)
        right.append(source.random(LENGTH) < 1 / (1 + np.exp(-(truth + 1.5 * sureness))))
    return np.concatenate(scores), np.concatenate(right)


def rolling_risks(given, right):
    """Return the risk of the last 100 given answers, from the 100th answer of each kind on."""
    places = np.flatnonzero(given)
    ends = [end for end in range(len(given)) if end % LENGTH >= 100]
    return np.array([1 - right[places[places <= end][-100:]].mean() for end in ends]).reshape(3, -1)


@pytest.mark.parametrize("seed", range(3))
def test_the_risk_follows_a_change_of_kind_and_a_fixed_threshold_does_not(seed):
    scores, right = stream(seed)
    state = PromiseState(risk=RISK)
    given = []
    for score, is_right in zip(scores, right, strict=True):
        state = state.marked(bool(is_right), float(score))
        given.append(state.marks[-1].given)
    fixed = scores >= expected_threshold(scores[:LENGTH], right[:LENGTH], RISK)
    adaptive, unmoved = (
        np.abs(rolling_risks(mask, right) - RISK) <= 0.05 for mask in (np.array(given), fixed)
    )
    assert adaptive.mean() > 0.75
    assert unmoved[1].mean() < 0.1  # of the facts
    assert abs(1 - right[given].mean() - RISK) < 0.04
    assert np.mean(given) > 0.3


def test_a_risk_out_of_reach_says_what_must_be_left_out():
    marks = [Mark(float(n), right=n >= 6, given=True) for n in range(10)]
    assert least_left_out(marks, 0.2) == pytest.approx(0.5)
    assert least_left_out([Mark(-mark.score, mark.right, True) for mark in marks], 0.2) == 1
    assert least_left_out([], 0.2) is None


WRITER = """
import sys
from entropix_mlx.answer.promise import Promise
promise = Promise("m")
for number in range(100_000):
    promise.mark(number % 3 > 0, float(number))
    print(promise.state.total, flush=True)
"""


@pytest.mark.parametrize("marks", [1, 7, 20])
def test_what_was_marked_outlives_a_kill(marks):
    with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True) as run:
        told = [int(run.stdout.readline()) for _ in range(marks)]
        run.send_signal(signal.SIGKILL)
        told += [int(line) for line in run.stdout.read().splitlines()]
    state = Promise("m").state
    assert told[-1] <= state.total <= told[-1] + 1
    assert [mark.score for mark in state.marks] == list(range(state.total))


def test_marks_of_two_at_once_are_both_kept():
    one, other = Promise("m"), Promise("m")
    one.mark(True, 1.0)
    other.mark(False, 2.0)
    Promise("m", "other").mark(True, 3.0)
    assert [mark.score for mark in Promise("m").state.marks] == [1.0, 2.0]


def test_a_mark_takes_the_score_of_the_promise():
    promise = Promise("m")
    promise.mark(True, {"max_entropy": 2.5, "mean_logprob": -1.0})
    promise.mark(True, AnswerMetrics(logprob=(-1.0,), entropy=(3.5,)))
    assert [mark.score for mark in promise.state.marks] == [-2.5, -3.5]
    for mistake in ({"mean_logprob": -1.0}, float("nan"), AnswerMetrics()):
        with pytest.raises(PromptError):
            promise.mark(True, mistake)
    with pytest.raises(ConfigurationError):
        promise.promise(risk=1.5)
    assert promise.state == Promise("m").state


def test_the_command_imports_shows_and_exports(tmp_path, capsys):
    marks = tmp_path / "marks.jsonl"
    lines = [{"right": n % 4 > 0, "scores": {"max_entropy": float(n % 4 == 0)}} for n in range(80)]
    marks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = ["promise", "--of", "m", "--kind", "sums"]
    assert cli.main([*run, "--risk", "0.1", "--jsonl", str(marks), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["m/sums"]
    assert report["marks"] == 80
    assert report["least_left_out"] == pytest.approx(0.25)
    copy = tmp_path / "copy.json"
    assert cli.main(["promise", "--export", str(copy)]) == 0
    assert "m/sums" in capsys.readouterr().out
    assert json.loads(copy.read_text()) == json.loads(promises_file().read_text())
    marks.write_text('{"right": 1, "score": 2}\n')
    for mistake in (["--jsonl", str(marks)], ["--risk", "2"]):
        assert cli.main([*run, *mistake]) == 2
        assert capsys.readouterr().err
    assert cli.main(["promise", "--risk", "0.1"]) == 2


@pytest.mark.parametrize("content", ["[1]", '{"m/answers": {"risk": 2}}', "{", '{"m": 1}', "[]"])
def test_a_file_of_something_else_is_reported(content):
    promises_file().parent.mkdir(parents=True)
    promises_file().write_text(content)
    with pytest.raises(ConfigurationError):
        Promise("m").mark(True, 1.0)
    assert promises_file().read_text() == content
