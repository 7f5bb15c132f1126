"""The bench on a tiny model: what it reports, not how fast anything is."""

import json
from dataclasses import replace

import mlx.core as mx
import pytest

from entropix_mlx import cli
from entropix_mlx.commands import bench as command
from entropix_mlx.errors import BenchError
from entropix_mlx.lab.bench import forks, startup, steps
from entropix_mlx.lab.bench.bench import Effort, bench
from entropix_mlx.lab.bench.decoding import read_bytes
from entropix_mlx.lab.bench.forks import at_once, make_fork, one_by_one
from entropix_mlx.lab.bench.pair import (
    ALL,
    GREEDY,
    INTERVENING,
    LAST,
    SAMPLED,
    copies,
    made_up_cache,
    make_pair,
    weight_bytes,
)
from entropix_mlx.lab.bench.timing import in_turns, peak_bytes, to_figures

pytestmark = pytest.mark.slow

TINY = Effort(
    contexts=(16, 24, 9999),
    tokens=3,
    repeats=2,
    intervention_repeats=1,
    prompt=6,
    history=12,
    question=3,
    prompt_repeats=1,
    vocabularies=(258,),
    candidates=(10,),
    draws=2,
    draw_repeats=2,
    widths=(1, 3),
    depth=3,
    prefix=12,
    fork_repeats=1,
    rows=(1, 3),
    batch_repeats=2,
    passes=(1, 3),
    lookup_tokens=12,
    lookup_samplers=("greedy",),
    lookup_repeats=1,
    starts=1,
)


@pytest.fixture(scope="module")
def pair(tiny_model, byte_tokenizer):
    with make_pair(tiny_model, byte_tokenizer) as pair:
        yield pair


@pytest.fixture
def no_processes(monkeypatch):
    """Starting two programs takes seconds."""
    started = []
    monkeypatch.setattr(startup, "_start", started.append)
    return started


def test_every_row_is_there(tiny_model, byte_tokenizer, no_processes):
    seen = []
    report = bench(tiny_model, byte_tokenizer, TINY, on_progress=seen.append)
    sections = dict.fromkeys(row.section for row in report.rows)
    assert list(sections) == [
        "start-up",
        "decoding",
        "peak memory",
        "memory bandwidth",
        "prefill",
        "first token",
        "sampler",
        "fork, time",
        "fork, memory",
        "many answers at once",
        "a pass of several tokens",
        "looking up the next tokens",
    ]
    assert len(seen) == 8
    assert {command[0] for command in no_processes} == {"mlx_lm", "entropix_mlx"}
    for row in report.rows:
        assert row.low <= row.median <= row.high
        assert row.low > 0
    decoding = [row for row in report.rows if row.section == "decoding"]
    # A context that the model cannot hold is left out.
    assert {row.case for row in decoding} == {"context 16", "context 24"}
    assert {row.name for row in decoding} == {GREEDY, SAMPLED, LAST, ALL, INTERVENING}
    ours = next(row for row in decoding if row.name == LAST)
    assert ours.repeats == 2
    assert [ratio.other for ratio in ours.ratios] == [GREEDY, SAMPLED]
    assert json.dumps(report.to_dict())
    many = [row for row in report.rows if row.section == "many answers at once"]
    assert [row.name for row in many] == [GREEDY, SAMPLED, LAST] * 2
    assert "× one answer" in many[-1].note


def test_a_step_is_profiled_alone(tiny_model, byte_tokenizer, no_processes):
    effort = Effort(contexts=(16,), draw_repeats=1)
    report = bench(tiny_model, byte_tokenizer, effort, profile_step=True)
    assert not no_processes
    assert {row.section for row in report.rows} == {"step"}
    assert {"forward pass", "measurements", "draw"} <= {row.name for row in report.rows}


def test_nothing_is_measured_beyond_a_models_context(pair, monkeypatch):
    lengths = []

    def made_up(model, length):
        lengths.append(length)
        return made_up_cache(model, length)

    monkeypatch.setattr(steps, "made_up_cache", made_up)
    monkeypatch.setattr(forks, "made_up_cache", made_up)
    limit = pair.model.config.max_position_embeddings
    effort = replace(TINY, contexts=(16, limit - 1, limit, 9999), prefix=9999)
    cases = {row.case for row in steps.measure_steps(pair, effort)}
    assert cases == {"context 16", f"context {limit - 1}"}
    cases = {row.case for row in forks.measure_forks(pair, effort)}
    longest = limit - 1 - effort.depth
    assert cases == {f"{width} × 3 tokens after {longest}" for width in (1, 3)}
    assert max(lengths) == limit - 1


def test_a_context_too_short_for_anything_leaves_no_rows(pair):
    limit = pair.model.config.max_position_embeddings
    effort = replace(TINY, contexts=(limit,), depth=limit - 1)
    assert steps.measure_steps(pair, effort) == forks.measure_forks(pair, effort) == []


def test_contenders_take_turns_in_both_orders():
    calls = []
    contenders = {name: lambda name=name: calls.append(name) or 1.0 for name in "ab"}
    assert in_turns(contenders, 2) == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert calls == ["a", "b", "b", "a"]


def test_ratios_are_taken_in_the_same_repeat():
    _, row = to_figures(
        "s", "c", "s", {"theirs": [1.0, 10.0, 4.0], "ours": [2.0, 5.0, 4.0]}, ["theirs"]
    )
    (ratio,) = row.ratios
    assert (row.median, row.low, row.high) == (4.0, 2.0, 5.0)
    assert (ratio.median, ratio.low, ratio.high) == (1.0, 0.5, 2.0)


def test_both_programs_have_the_same_weights(pair):
    tokens = mx.array([[1, 2, 3]])
    mine = pair.model(tokens).logits
    assert mx.allclose(mine, pair.other(tokens), atol=1e-4)
    assert weight_bytes(pair.model) == weight_bytes(pair.other)


def test_the_tokenizer_stays_as_it_was(pair, byte_tokenizer):
    assert not pair.tokenizer.eos_token_ids
    assert byte_tokenizer.eos_token_ids


def test_a_made_up_cache_holds_what_a_step_would_read(pair):
    cache = made_up_cache(pair.model, 20)
    real = pair.model.make_cache()
    pair.model(mx.zeros((1, 20), mx.int32), real)
    for layer, other in zip(cache, real, strict=True):
        for made_up, computed in zip(layer.keys_and_values(), other.keys_and_values(), strict=True):
            assert made_up.shape == computed.shape
            assert made_up.dtype == computed.dtype
    config = pair.model.config
    a_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert read_bytes(pair.model, cache) == weight_bytes(pair.model) + 20 * a_token


def test_copies_of_a_cache_grow_on_their_own(pair):
    cache = pair.model.make_cache()
    pair.model(mx.array([[1, 2, 3]]), cache)
    before = [mx.array(a) for a in cache[0].keys_and_values()]
    pair.model(mx.array([[4]]), copies(cache))
    pair.model(mx.array([[5]]), copies(cache))
    assert cache[0].offset == 3
    for kept, now in zip(before, cache[0].keys_and_values(), strict=True):
        assert mx.array_equal(kept, now)


def test_both_ways_to_roll_out_draw_the_same_tokens(pair):
    fork = make_fork(pair.model, made_up_cache(pair.model, 12), width=3, depth=4)
    branches = at_once(fork)
    assert [len(tokens) for tokens in branches] == [4, 4, 4]
    assert branches == one_by_one(fork) == at_once(fork)


def test_rollouts_one_by_one_keep_their_copies(pair):
    fork = make_fork(pair.model, made_up_cache(pair.model, 200), width=4, depth=3)
    cached = sum(a.nbytes for layer in fork.text.layers for a in layer.keys_and_values())
    assert peak_bytes(lambda: one_by_one(fork)) > 4 * cached


def test_a_program_that_fails_is_an_error_of_its_own(tmp_path):
    with pytest.raises(BenchError, match="mlx_lm_that_is_not_there"):
        startup._start(["mlx_lm_that_is_not_there", "generate"])


def test_a_full_disk_is_an_error_of_its_own(tiny_model, byte_tokenizer, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("entropix_mlx.lab.bench.pair.save", full)
    with pytest.raises(BenchError, match=r"No space left.*TMPDIR"):
        bench(tiny_model, byte_tokenizer, TINY)


@pytest.fixture
def run(monkeypatch, tiny_folder, capsys, no_processes):
    monkeypatch.setattr("entropix_mlx.lab.bench.bench.QUICK", TINY)

    def run(*arguments):
        code = cli.main(["bench", "--model", str(tiny_folder), "--quick", *arguments])
        return code, *capsys.readouterr()

    return run


def test_the_table_goes_to_stdout_and_progress_to_stderr(run):
    code, out, err = run()
    assert code == 0
    assert "measuring: decoding" in err
    assert "measuring" not in out
    assert "made-up keys and values" in out
    headings = [line for line in out.splitlines() if line.isupper()]
    assert len(headings) == len(set(headings)) == 12
    assert "÷ mlx-lm greedy" in out


def test_json_is_one_object(run):
    code, out, _ = run("--json", "--profile-step")
    record = json.loads(out)
    assert code == 0
    assert record["model"] == "tiny"
    assert record["machine"]["cores"] >= 1
    assert {row["unit"] for row in record["rows"]} == {"ms"}


def test_numbers_have_three_digits_that_count():
    assert [command._number(value) for value in (0.456, 45.6, 456.7)] == ["0.46", "45.6", "457"]
