"""Abstention: thresholds below which answers are unsure, and what they promise."""

import json

import numpy as np
import pytest

from entropix_mlx import Profile, cli
from entropix_mlx.errors import EntropixError
from entropix_mlx.lab.abstention import Abstention, fit_threshold, lowest_threshold
from entropix_mlx.lab.evaluate import parse_record
from entropix_mlx.profiles.confidence import AnswerMetrics, Verdict
from entropix_mlx.summary import Summary
from tests.lab.test_report import line

ALWAYS = {"abstain": {"score": "mean_logprob", "threshold": 0.0, "risk": 0.2, "n": 10}}


def sample(seed, n=800):
    """Return scores, and grades that are right with a probability that grows with them."""
    source = np.random.default_rng(seed)
    scores = source.random(n)
    return scores, source.random(n) < scores


def test_the_risk_holds_on_average_over_halves():
    risks = []
    for seed in range(60):
        threshold = lowest_threshold(*sample(seed), 0.2)
        scores, right = sample(1000 + seed, 4000)
        risks.append((~right[scores >= threshold]).mean())
    assert 0.17 < np.mean(risks) < 0.21  # and coverage is not given away


def test_the_threshold_is_the_lowest_that_fits():
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    right = np.array([True, True, True, True, False])
    assert lowest_threshold(scores, right, 0.2) == 2.0  # (0 + 1) / (4 + 1)
    assert lowest_threshold(scores, right, 0.1) is None


def lines(n=60):
    """Return answers of which the surer ones are right."""
    return [line(f"q{i}", "one", i % 3 > 0, logprob=-0.1 if i % 3 else -2.0) for i in range(n)]


def records(n=60):
    return [parse_record(each) for each in lines(n)]


def test_a_threshold_separates_what_can_be_separated():
    abstain = fit_threshold(records(), 0.2)
    assert (abstain.score, abstain.threshold, abstain.n) == ("mean_logprob", -0.1, 60)
    found = Abstention.of(abstain, records(30))
    assert found == (30, 20, 0)
    other = Abstention.of(abstain, [parse_record(line("q", "one", False))] * 4)
    assert other == (4, 4, 4)


@pytest.mark.parametrize(
    ("score", "value", "threshold", "shown"),
    [
        ("mean_entropy", -3.04, -2.23, "mean entropy 3.04 bits, above 2.23"),
        ("mean_varentropy", -12.5, -9.0, "mean varentropy 12.5 bits², above 9"),
        ("mean_logprob", -1.25, -0.5, "mean log p -1.25 nats, below -0.5"),
        ("min_margin", 0.125, 0.25, "min margin 0.125, below 0.25"),
    ],
)
def test_a_verdict_says_what_was_measured(score, value, threshold, shown):
    assert shown in Verdict(score, value, threshold, risk=0.2).reason


def test_a_threshold_rests_on_enough_answers():
    assert fit_threshold(records(45), 0.2).n == 45
    with pytest.raises(EntropixError, match="--limit"):
        fit_threshold(records(42), 0.2)  # 28 of them are right


def test_no_coverage_is_a_failure():
    wrong = [parse_record(line(f"q{i}", "one", False)) for i in range(20)]
    for answers in ([*wrong, parse_record(line("q", "one", True))], []):
        with pytest.raises(EntropixError):
            fit_threshold(answers, 0.2)


def test_summary_and_verdict_come_from_the_answers_own_tokens(tiny_model, byte_tokenizer):
    from entropix_mlx import stream_generate

    steps = list(stream_generate(tiny_model, byte_tokenizer, [1, 2], max_tokens=8, seed=1))
    summary = Summary.of(steps)
    own = [step.logprob for step in steps if step.origin != "inserted"]
    assert summary.metrics == AnswerMetrics.of(steps)
    assert summary.confidence == pytest.approx(np.exp(np.mean(own)))
    verdict = Profile.load().replace(ALWAYS).abstain.verdict(summary.metrics)
    assert verdict.unsure
    assert verdict.value == pytest.approx(np.mean(own))
    assert Summary().confidence == 0.0
    assert Profile.load().replace(ALWAYS).abstain.verdict(AnswerMetrics()).unsure


def test_generate_says_that_an_answer_is_unsure(tiny_folder, capsys):
    run = ["generate", "--model", str(tiny_folder), "--prompt", "a", "--max-tokens", "4"]
    always = [f"--set=abstain.{key}={json.dumps(v)}" for key, v in ALWAYS["abstain"].items()]
    assert cli.main([*run, *always, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["certainty"]["unsure"] is True
    assert "unsure" in err
    assert cli.main([*run, *always, "--json", "--n", "2"]) == 0
    answers = capsys.readouterr().out.splitlines()
    assert [json.loads(answer)["certainty"]["unsure"] for answer in answers] == [True, True]
    assert cli.main([*run, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "certainty" not in json.loads(out)
    assert "unsure" not in err


def test_calibrate_sets_the_threshold(tiny_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("entropix_mlx.lab.grading.is_right", lambda *_: True)
    questions, file = tmp_path / "own.jsonl", tmp_path / "answers.jsonl"
    questions.write_text("".join(f'{{"question": "{i}", "answer": {i}}}\n' for i in range(90)))
    ask = ["eval", "--model", str(tiny_folder), "--task", str(questions), "--output", str(file)]
    assert cli.main([*ask, "--arm", "greedy"]) == 0
    profile = tmp_path / "profile.toml"
    run = ["calibrate", "--model", str(tiny_folder), "--output", str(profile)]
    assert cli.main([*run, "--abstain", str(file), "--risk", "0.3"]) == 0
    assert "the other half: " in capsys.readouterr().err
    assert Profile.load(profile).abstain.risk == 0.3
    assert Profile.load(profile).calibration["fingerprint"]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:8]))
    assert cli.main([*run, "--abstain", str(file)]) == 2
    assert "threshold" in capsys.readouterr().err
    for mistake in (["--risk", "3"], ["--abstain", str(questions)]):
        assert cli.main([*run, *mistake]) == 2
