"""Reports: accuracy, cost, contrasts between arms, and how well scores separate."""

import json

import pytest

from entropix_mlx.errors import OutputError
from entropix_mlx.lab.evaluate import parse_record
from entropix_mlx.lab.report import EvaluationReport


def line(question, arm, right, committed=2, discarded=0, level="r", logprob=-0.1):
    return {
        "question": question, "task": "t", "level": level, "arm": arm, "form": "chat",
        "right": right, "committed": committed, "discarded": discarded,
        "text": "1", "usage": {"prompt_tokens": 5, "completion_tokens": committed},
        "sampler": arm, "model": "m",
        "tokens": {
            "logprob": [logprob], "entropy": [-logprob], "varentropy": [0.5], "margin": [0.5],
        },
    }  # fmt: skip


def test_accuracy_cost_and_contrasts_are_paired():
    lines = [
        *(line(f"q{i}", "one", i < 6, 2) for i in range(10)),
        *(line(f"q{i}", "two", i in (0, 1, 9), 3, 5) for i in range(10)),
    ]
    report = EvaluationReport.of([parse_record(each) for each in lines])
    one, two = report.accuracies
    assert (one.right, one.n, one.tokens_per_right_answer) == (6, 10, 20 / 6)
    assert (two.right, two.tokens_per_right_answer) == (3, 80 / 3)
    (contrast,) = report.contrasts
    assert (contrast.first, contrast.second) == ("two", "one")
    assert (contrast.wins, contrast.losses, contrast.questions) == (1, 4, 10)
    assert contrast.difference == pytest.approx(-0.3)
    assert contrast.p_value == pytest.approx(2 * 6 / 32)
    assert contrast.interval.low < -0.3 < contrast.interval.high


def test_levels_are_reported_beside_all():
    lines = [line(f"q{i}", "one", i < 2, level="abc"[i % 3]) for i in range(6)]
    report = EvaluationReport.of([parse_record(each) for each in lines])
    assert [one.level for one in report.accuracies] == ["all", "a", "b", "c"]
    assert sum(one.n for one in report.accuracies[1:]) == report.accuracies[0].n == 6
    with pytest.raises(OutputError):
        EvaluationReport.of([])


def test_a_record_may_say_more():
    now = line("q", "a", True)
    later = now | {"tokens": now["tokens"] | {"rollouts": ["x"]}}
    assert parse_record(later) == parse_record(now)
    with pytest.raises(ValueError, match="question"):
        parse_record(now | {"question": {"id": "q"}})


def test_a_report_shows_how_well_scores_separate():
    answers = [
        line(f"q{i}", "one", i % 2 == 0, logprob=-0.1 - 0.01 * i - (i % 2)) for i in range(40)
    ]
    report = EvaluationReport.of([parse_record(each) for each in answers], confidence=True)
    by_score = {each.score: each for each in report.separations}
    assert by_score["mean_logprob"].auroc.value == by_score["mean_logprob"].within == 1.0
    assert by_score["min_margin"].auroc.value == 0.5
    assert report.to_dict()["questions"] == 40
    json.dumps(report.to_dict(), allow_nan=False)
    few = EvaluationReport.of([parse_record(answers[0])], confidence=True)
    json.dumps(few.to_dict(), allow_nan=False)
    assert all(table.to_text() for table in few.tables())
