"""Traces: what was recorded is read again, whole or as far as it came."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from entropix_mlx import stream_generate
from entropix_mlx.errors import TraceError
from entropix_mlx.profiles.tree import classify
from entropix_mlx.step import Strategy
from entropix_mlx.traces.trace import read_trace, recorded
from tests.answer.test_forks import always_branch
from tests.steps import HEADER, make_step


def edited(file, number, change):
    lines = file.read_text().split("\n")
    lines[number - 1] = change(lines[number - 1])
    file.write_text("\n".join(lines))
    return file


def with_field(name, value):
    return lambda line: json.dumps(json.loads(line) | {name: value})


@pytest.fixture(scope="module")
def recording(tiny_model, byte_tokenizer, tmp_path_factory):
    file = tmp_path_factory.mktemp("recording") / "trace.jsonl"
    steps = stream_generate(
        tiny_model, byte_tokenizer, [72, 105], max_tokens=20, seed=1, top_logprobs=3
    )
    return file, list(recorded(steps, file, HEADER))


@pytest.fixture
def trace(recording, tmp_path):
    """A trace, which a test may damage, and what it recorded."""
    file, steps = recording
    return Path(shutil.copy(file, tmp_path)), steps


def test_what_was_recorded_is_read_again(trace):
    file, steps = trace
    again = read_trace(file)
    assert again.header == HEADER
    assert [step.to_dict() for step in again.steps] == [step.to_dict() for step in steps]
    assert again.totals["usage"]["completion_tokens"] == 20


def test_forks_are_read_again(tiny_model, byte_tokenizer, tmp_path):
    options = {"profile": always_branch(min_gap=3), "top_logprobs": 2}
    steps = stream_generate(tiny_model, byte_tokenizer, [72, 105], max_tokens=30, seed=1, **options)
    recorded_steps = list(recorded(steps, tmp_path / "trace.jsonl", HEADER))
    again = read_trace(tmp_path / "trace.jsonl").steps
    assert any(step.fork for step in again)
    assert [step.to_dict() for step in again] == [step.to_dict() for step in recorded_steps]
    for one, other in zip(again, recorded_steps, strict=True):
        assert (one.strategy, one.origin) == (other.strategy, other.origin)
        assert one.fork is None or one.fork.branches[0].tokens == other.fork.branches[0].tokens


def test_infinities_and_line_separators_are_read_again(tmp_path):
    file = tmp_path / "trace.jsonl"
    thresholds = {"branch_min_varentropy": float("inf"), "low_entropy": float("-inf")}
    profile = HEADER.profile.replace({"thresholds": thresholds})
    messages = [{"role": "user", "content": "one\u2028two\x85three"}]
    header = replace(HEADER, profile=profile, messages=messages)
    list(recorded([], file, header))
    assert "Infinity" not in file.read_text()
    assert read_trace(file).header == header


def test_an_interrupted_recording_is_readable(tiny_model, byte_tokenizer, tmp_path):
    file = tmp_path / "trace.jsonl"
    steps = stream_generate(tiny_model, byte_tokenizer, [72], max_tokens=20, seed=1)
    stream = recorded(steps, file, HEADER)
    for _ in range(3):
        next(stream)
    assert len(read_trace(file).steps) == 3, "every line is there as soon as its step"
    assert read_trace(file).totals is None
    stream.close()
    assert read_trace(file).totals["finish_reason"] == "interrupted"


@pytest.mark.parametrize("rest", [b'{"record": "step", "ind', '{"text": "é'.encode()[:-1]])
def test_a_line_that_was_cut_off_is_left_out(trace, rest):
    file, _ = trace
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([*lines[:6], rest]))
    assert len(read_trace(file).steps) == 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_what_cannot_be_written_is_a_trace_error(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in ("/dev/full", tmp_path / "fifo", tmp_path / "absent" / "trace.jsonl"):
        with pytest.raises(TraceError, match=f"^cannot write {path}"):
            list(recorded([], path, HEADER))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "not a trace"),
        ("[]", "not a trace"),
        ('{"format": "entropix trace", "version": 1}', "not a trace"),
        ('{"record": "header", "format": "entropix trace", "version": 9}', "version.*upgrade"),
        ('{"record": "header", "format": "entropix trace", "version": 1}', "line 1"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path, content, named):
    file = tmp_path / "trace.jsonl"
    with pytest.raises(TraceError, match=f"^cannot read {file}"):
        read_trace(file)
    file.write_text(content)
    with pytest.raises(TraceError, match=named):
        read_trace(file)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda _: json.dumps({"record": "step", "index": 2}), "token"),
        (lambda _: '{"record": ' + "[" * 100_000, "brackets"),
        (with_field("entropy", "x"), "entropy"),
        (with_field("time", None), "time"),
        (with_field("strategy", "guess"), "strategy"),
        (
            with_field("top_logprobs", [{"token": 1, "text": "", "logprob": {}}]),
            r"top_logprobs\[0\].logprob",
        ),
        (with_field("fork", {"branches": [], "winner": 0, "chosen_by": "user"}), "fork.winner"),
        (with_field("index", 7), "index"),
    ],
)
def test_a_damaged_step_is_named(trace, change, named):
    with pytest.raises(TraceError, match=f"line 4 is damaged: {named}"):
        read_trace(edited(trace[0], 4, change))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("model", -1, "model"),
        ("seed", "x", "seed"),
        ("messages", [{"role": "user"}], "messages"),
        ("profile", {"thresholds": {"low_entropy": "x"}}, "low_entropy"),
        ("profile", {"base": {"luck": 7}}, r"unknown field base\.luck.*version"),
        ("profile", {"courage": {}}, r"unknown field courage.*version"),
    ],
)
def test_a_damaged_header_is_named(trace, field, value, named):
    with pytest.raises(TraceError, match=f"line 1 is damaged: .*{named}"):
        read_trace(edited(trace[0], 1, with_field(field, value)))


def test_a_trace_of_a_newer_program_of_the_same_version_is_read(trace):
    file, _ = trace
    expected = read_trace(file)
    header, *lines = map(json.loads, file.read_text().splitlines())
    header |= {"mood": "good"}
    lines[0] |= {"mood": "better"}
    records = [header, lines[0], {"record": "remark", "text": "hm"}, *lines[1:]]
    file.write_text("\n".join(map(json.dumps, records)))
    assert read_trace(file) == expected


def test_an_older_file_takes_what_it_lacks_from_the_reference(trace):
    def older(line):
        record = json.loads(line)
        del record["profile"]["think"]["min_gap"], record["versions"]
        return json.dumps(record)

    again = read_trace(edited(trace[0], 1, older)).header
    assert again.profile == HEADER.profile
    assert again.versions == {}, "not those that are installed here"


def test_a_trace_holds_nothing_that_a_terminal_obeys(tmp_path):
    file = tmp_path / "trace.jsonl"
    text = "\x9b31m \x7f \u2028 \ud800 é"
    header = replace(HEADER, messages=[{"role": "user", "content": text}])
    list(recorded([make_step(0, text)], file, header))
    assert not set(file.read_text("utf-8")) & set(text) - set("31m é")
    again = read_trace(file)
    assert again.steps[0].text == text.replace("\ud800", "?"), "UTF-8 cannot hold a lone surrogate"
    assert again.header.messages[0]["content"] == again.steps[0].text


def test_a_profile_classifies_its_own_steps_as_it_did(trace):
    _, steps = trace
    profile = HEADER.profile
    assert classify(steps, profile) == [step.strategy for step in steps]
    lost = make_step(0, "x", Strategy.THINK_SAMPLE, entropy=9.0, varentropy=0.0)
    assert classify([lost], profile) == [Strategy.THINK_SAMPLE], "no text may be inserted there"
    calm = profile.replace({"thresholds": {"low_entropy": 99, "low_varentropy": 999}})
    assert set(classify(steps, calm)) == {"argmax"}
