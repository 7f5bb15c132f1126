"""Results: accuracy, contrasts, votes and their cost; records of earlier versions."""

import json

import pytest

from entropix_mlx import cli
from entropix_mlx.errors import PromptError
from entropix_mlx.lab.evaluation.records import parse_record
from entropix_mlx.lab.evaluation.results import (
    combinations_of,
    combine,
    summarize,
)


def line(question, arm, right, committed=2, discarded=0, level="r", logprob=-0.1):
    return {
        "question": {
            "id": question, "task": "t", "level": level, "split": "report", "rule": "number",
            "answers": ["1"], "arm": arm, "seed_number": 0, "form": "chat",
        },
        "graded": {"right": right, "committed": committed, "discarded": discarded},
        "text": "1", "usage": {"prompt_tokens": 5, "completion_tokens": committed},
        "sampler": arm, "model": "m",
        "tokens": {
            "logprob": [logprob], "entropy": [-logprob], "varentropy": [0.5], "margin": [0.5],
            "attention_entropy": [1.0], "first": 0,
        },
    }  # fmt: skip


def test_accuracy_cost_and_contrasts_are_paired():
    lines = [
        *(line(f"q{i}", "one", i < 6, 2) for i in range(10)),
        *(line(f"q{i}", "two", i in (0, 1, 9), 3, 5, logprob=-0.5 - i) for i in range(10)),
    ]
    results = summarize([parse_record(each) for each in lines])
    one, two = results.accuracies[0], results.accuracies[1]
    assert (one.right, one.n, one.tokens_per_right_answer) == (6, 10, 20 / 6)
    assert (two.right, two.tokens_per_right_answer) == (3, 80 / 3)
    (contrast,) = results.contrasts
    assert (contrast.first, contrast.second) == ("two", "one")
    assert (contrast.wins, contrast.losses, contrast.questions) == (1, 4, 10)
    assert contrast.difference == pytest.approx(-0.3)
    assert contrast.p_value == contrast.adjusted == pytest.approx(2 * 6 / 32)
    assert contrast.interval.low < -0.3 < contrast.interval.high
    assert contrast.logprob == pytest.approx(-5.0 + 0.1)
    assert contrast.logprob_interval.low < contrast.logprob < contrast.logprob_interval.high


def test_a_record_may_say_more():
    now = line("q", "a", True)
    later = now | {"tokens": now["tokens"] | {"rollouts": ["x"]}}
    assert parse_record(later) == parse_record(now)
    with pytest.raises(ValueError, match="question"):
        parse_record(now | {"question": {"id": "q"}})


def answer(text, number, logprob=-1.0, question="q", arm="a"):
    record = line(question, arm, text == " 7", committed=3, discarded=number, logprob=logprob)
    record["question"] |= {"seed_number": number, "answers": ["7"], "rule": "number"}
    return parse_record(record | {"text": text})


def vote(*answers):
    (record,) = combine(answers, combinations_of([len(answers)], [])[0])
    return record


def test_what_most_say_wins_and_costs_what_all_cost():
    record = vote(answer(" 8", 0, -0.1), answer(" 7", 1), answer(" 7", 2))
    assert record.graded.right
    assert record.question.arm == "a vote of 3"
    assert (record.graded.committed, record.graded.discarded) == (9, 0 + 1 + 2)


def test_a_tie_goes_to_the_more_probable_and_silence_has_no_vote():
    assert vote(answer(" 8", 0, -2.0), answer(" 7", 1, -0.5)).graded.right
    assert not vote(answer(" 8", 0, -0.5), answer(" 7", 1, -2.0)).graded.right
    assert vote(answer("", 0), answer("hm", 1), answer(" 7", 2, -9.0)).graded.right
    assert vote(answer(" 8", 0), answer(" 7", 1), answer(" 3 + 4 = 7", 2)).text.endswith("7")


def test_only_the_first_answers_count_and_all_must_be_there():
    answers = [answer(" 8", 1, -0.4), answer(" 7", 0, -0.2), answer(" 8", 2)]
    of_one, of_four, best_of_two = combinations_of([1, 4], [2])
    for how in (of_one, best_of_two):
        (first,) = combine(answers, how)
        assert first.graded.right
    assert combine(answers, of_four) == []


def test_only_the_contrasts_that_were_named_are_reported():
    records = [answer(" 7", 0, arm=arm) for arm in "abc"]
    assert len(summarize(records).contrasts) == 3
    (found,) = summarize(records, [("c", "a")]).contrasts
    assert (found.first, found.second, found.adjusted) == ("c", "a", found.p_value)
    with pytest.raises(PromptError, match="'d'"):
        summarize(records, [("a", "d")])


def test_files_are_read_together_and_votes_are_arms(tmp_path, capsys):
    files = []
    for arm in "ab":
        lines = [line(f"q{n}", arm, n % 2 == 1) for n in range(4) for _ in range(2)]
        for place, record in enumerate(lines):
            record["question"]["seed_number"] = place % 2
        files.append(tmp_path / f"{arm}.jsonl")
        files[-1].write_text("".join(json.dumps(record) + "\n" for record in lines))
    reads = [option for file in files for option in ("--read", str(file))]
    assert cli.main(["eval", *reads, "--vote", "2", "--contrast", "a vote of 2", "b"]) == 0
    out = capsys.readouterr().out
    assert "b vote of 2" in out
    assert "a vote of 2 − b " in out
    assert "a − b" not in out
