"""Answers made of several: what a majority says, the most probable one, and what they cost."""

import json

import pytest

from entropix_mlx import cli
from entropix_mlx.errors import PromptError
from entropix_mlx.lab.evaluation.records import parse_record
from entropix_mlx.lab.evaluation.report import Report
from entropix_mlx.lab.evaluation.results import summarize
from entropix_mlx.lab.evaluation.voting import joined, majority, most_probable
from tests.lab.test_evaluation import line


def answer(text, number, logprob=-1.0, question="q", arm="a"):
    record = line(question, arm, text == " 7", committed=3, discarded=number, logprob=logprob)
    record["question"] |= {"seed_number": number, "answers": ["7"], "rule": "number"}
    return parse_record(record | {"text": text})


def vote(*answers, n=None):
    (record,) = joined(answers, n or len(answers), majority, "vote")
    return record


def test_what_most_say_wins_and_costs_what_all_cost():
    record = vote(answer(" 8", 0, -0.1), answer(" 7", 1), answer(" 7", 2))
    assert record.graded.right
    assert record.question.arm == "a vote"
    assert (record.graded.committed, record.graded.discarded) == (9, 0 + 1 + 2)


def test_a_tie_goes_to_the_more_probable_and_silence_has_no_vote():
    assert vote(answer(" 8", 0, -2.0), answer(" 7", 1, -0.5)).graded.right
    assert not vote(answer(" 8", 0, -0.5), answer(" 7", 1, -2.0)).graded.right
    assert vote(answer("", 0), answer("hm", 1), answer(" 7", 2, -9.0)).graded.right


def test_the_same_said_otherwise_is_the_same():
    assert vote(answer(" 8", 0), answer(" 7", 1), answer(" 3 + 4 = 7", 2)).text.endswith("7")


def test_only_the_first_answers_count_and_all_must_be_there():
    answers = [answer(" 7", 0), answer(" 8", 1), answer(" 8", 2)]
    assert vote(*answers[:1], n=1).graded.right
    assert joined(answers, 4, majority, "vote") == []
    (best,) = joined([answer(" 7", 1, -0.2), answer(" 8", 0, -0.4)], 2, most_probable, "best")
    assert best.graded.right


def test_only_the_contrasts_that_were_named_are_told():
    records = [answer(" 7", 0, arm=arm) for arm in "abc"]
    assert len(summarize(records).contrasts) == 3
    (found,) = summarize(records, [("c", "a")]).contrasts
    assert (found.first, found.second, found.adjusted) == ("c", "a", found.p_value)
    with pytest.raises(PromptError, match="no arm 'd' to compare"):
        Report.of(records, pairs=[("a", "d")])


def test_files_are_read_together_and_votes_are_arms(tmp_path, capsys):
    files = []
    for arm in "ab":
        lines = [line(f"q{n}", arm, n % 2 == 1) for n in range(4) for _ in range(2)]
        for place, record in enumerate(lines):
            record["question"] |= {"seed_number": place % 2, "rule": "number"}
        files.append(tmp_path / f"{arm}.jsonl")
        files[-1].write_text("".join(json.dumps(record) + "\n" for record in lines))
    reads = [option for file in files for option in ("--read", str(file))]
    assert cli.main(["eval", *reads, "--vote", "2", "--contrast", "a vote of 2", "b"]) == 0
    out = capsys.readouterr().out
    assert "b vote of 2" in out
    assert "a vote of 2 − b " in out
    assert "a − b" not in out
    assert cli.main(["eval", *reads, "--contrast", "a", "z"]) == 2
    assert "no arm 'z' to compare" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--vote", "3", "--seeds", "2"], "add --seeds 3"),
        (["--best-of", "2"], "add --seeds 2"),
        (["--contrast", "greedy", "greedyy"], "did you mean greedy"),
        (["--vote", "2", "--seeds", "2", "--contrast", "greedy vote of 3", "greedy"], "no arm"),
    ],
)
def test_what_cannot_be_compared_is_told_before_the_model_is_loaded(options, told, capsys):
    run = ["eval", "--model", "no/such", "--limit", "2", "--sampler", "greedy"]
    assert cli.main([*run, *options]) == 2
    assert told in capsys.readouterr().err
