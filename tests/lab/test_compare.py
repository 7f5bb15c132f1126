"""Comparing samplers: what the figures are made of, and the command that prints them."""

import json
import math

import pytest

from entropix_mlx.step import Branch, Fork, Origin
from entropix_mlx.summary import Sample, repetition, summarize
from entropix_mlx.traces.trace import read_trace
from tests.steps import make_step


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        ([], 0),
        ([[1, 2, 3, 4]], 0),
        ([[7] * 8], 4 / 5),
        ([[1, 2, 3, 4, 1, 2, 3, 4]], 1 / 5),
        ([[1, 2, 3, 4], [1, 2, 3, 4]], 0),
        ([[7] * 8, [1, 2, 3, 4, 5]], 4 / 7),
    ],
)
def test_repetition_is_the_share_of_runs_seen_before(texts, share):
    assert repetition(texts) == pytest.approx(share)


def test_a_result_is_made_of_all_answers_of_a_sampler():
    fork = Fork((Branch((1,), "x", -1.0, 1.0),), 0)
    first = (
        make_step(0, "a", logprob=-1.0, time=5.0),
        make_step(1, "b", logprob=-2.0, time=5.5, fork=fork, rolled_back=1),
    )
    second = (
        make_step(0, "ab", logprob=-3.0, time=9.0, origin=Origin.INSERTED, rolled_back=1),
        make_step(1, "", logprob=-6.0, time=9.5),
    )
    found = [Sample("one", 0, first), Sample("two", 0, first), Sample("one", 1, second)]
    one, two = summarize(found)
    assert (one.sampler, one.answers, one.tokens) == ("one", 2, 4)
    assert one.distinct_texts == 1, "ab and ab"
    assert one.mean_logprob == -3.0
    assert one.perplexity == pytest.approx(math.exp(3))
    assert one.tokens_per_second == pytest.approx(2.0)
    assert (one.insertions, one.branches) == (1, 1)
    assert (two.answers, two.insertions, two.branches) == (1, 0, 1)
    (empty,) = summarize([Sample("none", 0, ())])
    assert (empty.tokens, empty.tokens_per_second, empty.perplexity) == (0, 0, 1)


@pytest.fixture
def run(entropix, tiny_folder):
    return lambda *arguments: entropix("compare", "--model", tiny_folder, "-p", "hello", *arguments)


SAMPLERS = ("--sampler", "entropix", "--sampler", "greedy", "--seeds", "2", "-m", "6")


def test_a_table_is_printed(run):
    code, out, err = run(*SAMPLERS)
    assert code == 0
    head, *rows = [line.split() for line in out.splitlines()]
    assert head[:3] == ["sampler", "answers", "distinct"]
    assert [row[:2] for row in rows] == [["entropix", "2"], ["greedy", "2"]]
    assert rows[1][2] == "1", "greedy says the same whatever the seed"
    assert len({len(line) for line in out.splitlines()}) == 1, "columns line up"
    assert "greedy, seed 1" in err
    code, _, _ = run("--sampler", "min_p", "--top-k", "0", "--seeds", "1", "-m", "1")
    assert code == 0, "what only another sampler refuses is no mistake"


def test_answers_are_those_of_their_sampler_and_seed_in_traces_too(run, tmp_path):
    folder = tmp_path / "new" / "traces"
    code, out, _ = run(*SAMPLERS, "--seed", "7", "--json", "--trace", str(folder))
    assert code == 0
    record = json.loads(out)
    assert [result["tokens"] for result in record["results"]] == [12, 12]
    assert [(a["sampler"], a["seed"]) for a in record["answers"]] == [
        *(("entropix", 7), ("entropix", 8), ("greedy", 7), ("greedy", 8))
    ]
    for answer in record["answers"]:
        trace = read_trace(folder / f"{answer['sampler']}-{answer['seed']}.jsonl")
        assert "".join(step.text for step in trace.steps) == answer["text"]
        assert (trace.header.sampler, trace.header.seed) == (answer["sampler"], answer["seed"])
        assert trace.totals is not None
    assert len(list(folder.iterdir())) == 4
    assert run("--sampler", "greedy", "-p", "x" * 300)[0] == 2, "an answer that fails is an error"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], "--sampler"),
        (["--sampler", "magic"], "'magic'"),
        (["--sampler", "entropix", "--sampler", "greedy", "--temp", "1"], "greedy"),
        (["--sampler", "greedy", "--seeds", "0"], "--seeds"),
        (["--sampler", "greedy", "--trace", __file__], __file__),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(run, arguments, names):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert names in err
    assert "Traceback" not in err
