"""What a generation amounts to."""

import pytest

from entropix_mlx.api.batch import BatchAnswer
from entropix_mlx.profiles.confidence import AnswerMetrics
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Branch, Fork, Origin
from entropix_mlx.summary import Summary
from tests.steps import make_step

FORK = Fork((Branch((1,), "x", -1.0, 1.0),), 0)


def summary_of(*steps):
    return Summary.of(steps)


def test_the_speed_leaves_the_prefill_out():
    steps = [make_step(i, "a", time=2 + i / 10) for i in range(11)]
    assert summary_of(*steps).tokens_per_second == pytest.approx(10)
    assert summary_of(*steps).time_to_first_token == 2
    assert summary_of(steps[0]).tokens_per_second == 0


def test_accepted_proposals_at_the_beginning_come_at_once():
    proposed = [make_step(i, "a", time=3.0 + i / 1e6, accepted=int(i > 0)) for i in range(4)]
    after = [make_step(4 + i, "a", time=4.0 + i // 2, accepted=i % 2) for i in range(4)]
    assert summary_of(*proposed).tokens_per_second == 0
    assert summary_of(*proposed, *after).tokens_per_second == pytest.approx(2, rel=1e-4)


def test_the_tokens_of_a_fork_at_the_beginning_come_at_once():
    fork = [make_step(0, "a", time=3.0, fork=FORK, rolled_back=1, origin=Origin.BRANCH)]
    fork += [make_step(i, "a", time=3.0 + i / 1e6, origin=Origin.BRANCH) for i in range(1, 8)]
    after = [make_step(8 + i, "a", time=3.5 + i / 2) for i in range(4)]
    assert summary_of(*fork).tokens_per_second == 0
    assert summary_of(*fork, *after).tokens_per_second == pytest.approx(2, rel=1e-4)
    again = [make_step(12, "a", time=9.0, fork=FORK, rolled_back=1, origin=Origin.BRANCH)]
    assert summary_of(*fork, *after, *again).tokens_per_second == pytest.approx(5 / 6, rel=1e-4)


@pytest.mark.parametrize(("threshold", "unsure"), [(0.1, False), (0.5, True)])
def test_an_answer_is_unsure_by_the_margin_of_its_first_word(threshold, unsure):
    steps = [make_step(0, " ", margin=0.9), make_step(1, "Yes", margin=0.2)]
    rule = {"score": "min_margin", "threshold": threshold, "risk": 0.2, "n": 10}
    verdict = Profile.load().replace({"abstain": rule}).abstain.verdict(AnswerMetrics.of(steps))
    assert (verdict.value, verdict.unsure) == (0.2, unsure)


def test_a_notebook_shows_the_tokens_and_runs_nothing():
    steps = [make_step(0, "<script>&"), make_step(1, "\x1b\ud800 fine")]
    page = Summary.of(steps)._repr_html_()
    page.encode("utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "max_entropy" in page
    assert page.count("title=") == 2
    assert BatchAnswer(0, steps=steps)._repr_html_() == page
