"""Traces: what was recorded is read again, whole or as far as it came."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from entropix_mlx import Profile, old_names, stream_generate
from entropix_mlx.errors import TraceError
from entropix_mlx.profiles.tree import classify
from entropix_mlx.step import Branch, Fork
from entropix_mlx.traces.trace import Header, TraceWriter, read_trace, recorded
from tests.tui.conftest import make_step

HEADER = Header(
    model="tiny",
    sampler="entropix",
    profile=Profile.load(),
    seed=1,
    messages=[{"role": "user", "content": "Hi [bold]"}],
    context_length=256,
    prompt_tokens=2,
)


@pytest.fixture
def trace(tiny_model, byte_tokenizer, tmp_path):
    file = tmp_path / "trace.jsonl"
    steps = stream_generate(
        tiny_model, byte_tokenizer, [72, 105], max_tokens=20, seed=1, top_logprobs=3
    )
    return file, list(recorded(steps, file, HEADER))


def test_what_was_recorded_is_read_again(trace):
    file, steps = trace
    again = read_trace(file)
    assert again.header == HEADER
    assert [step.to_dict() for step in again.steps] == [step.to_dict() for step in steps]
    assert again.totals["usage"]["completion_tokens"] == 20


def test_infinite_thresholds_are_json_too(tmp_path):
    file = tmp_path / "trace.jsonl"
    thresholds = {"branch_min_varentropy": float("inf"), "low_entropy": float("-inf")}
    header = replace(HEADER, profile=HEADER.profile.replace({"thresholds": thresholds}))
    list(recorded([], file, header))
    assert "Infinity" not in file.read_text()
    assert read_trace(file).header == header


def test_a_line_separator_inside_a_text_is_no_new_line(tmp_path):
    file = tmp_path / "trace.jsonl"
    header = replace(HEADER, messages=[{"role": "user", "content": "one\u2028two\x85three"}])
    list(recorded([], file, header))
    assert read_trace(file).header == header


def test_an_interrupted_recording_is_readable(tiny_model, byte_tokenizer, tmp_path):
    file = tmp_path / "trace.jsonl"
    stream = recorded(
        stream_generate(tiny_model, byte_tokenizer, [72], max_tokens=20), file, HEADER
    )
    for _ in range(3):
        next(stream)
    assert len(read_trace(file).steps) == 3, "every line is there as soon as its step"
    assert read_trace(file).totals is None
    stream.close()
    assert read_trace(file).totals["finish_reason"] == "interrupted"


def test_a_line_that_was_cut_off_is_left_out(trace):
    file, _ = trace
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:6]) + "\n" + lines[6][:40])
    assert len(read_trace(file).steps) == 5


def test_a_line_that_was_cut_off_within_a_character_is_left_out(trace):
    file, steps = trace
    line = json.dumps({"record": "step", "text": "é"}, ensure_ascii=False).encode()
    whole = b"\n".join(file.read_bytes().split(b"\n")[: len(steps) + 1])
    file.write_bytes(whole + b"\n" + line[: line.index("é".encode()) + 1])
    assert len(read_trace(file).steps) == len(steps)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_a_trace_error(tmp_path):
    with pytest.raises(TraceError, match="cannot write"):
        TraceWriter("/dev/full", HEADER)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(TraceError, match="nobody reads that pipe"):
        TraceWriter(tmp_path / "fifo", HEADER)
    writer = TraceWriter(tmp_path / "trace.jsonl", HEADER)
    writer._file.close()
    writer._file = open("/dev/full", "w")  # noqa: SIM115 - the writer closes it
    with pytest.raises(TraceError, match="cannot write"), writer:
        writer.add(make_step(0, "a"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a trace"),
        ("[]", "is not a trace"),
        ("{}", "is not a trace"),
        (
            '{"record": "header", "format": "entropix trace", "version": 9}',
            "another version.*upgrade",
        ),
        (
            '{"record": "header", "format": "entropix trace", "version": 0}',
            "another version.*the program that wrote it",
        ),
        ('{"format": "entropix trace", "version": 1}', "is not a trace"),
        ('{"record": "header", "format": "entropix trace", "version": 1}', "line 1 is damaged"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path, content, message):
    file = tmp_path / "trace.jsonl"
    file.write_text(content)
    with pytest.raises(TraceError, match=message):
        read_trace(file)
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path / "absent")
    with pytest.raises(TraceError, match="cannot write"):
        list(recorded([], tmp_path / "absent" / "trace.jsonl", HEADER))


def test_a_damaged_line_is_named(trace):
    file, _ = trace
    lines = file.read_text().splitlines()
    lines[3] = json.dumps({"record": "step", "index": 2})
    file.write_text("\n".join(lines))
    with pytest.raises(TraceError, match="line 4 is damaged"):
        read_trace(file)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("entropy", "x", "entropy must be a finite number, not 'x'"),
        ("varentropy", float("inf"), "varentropy must be a finite number, not inf"),
        ("time", None, "time must be a finite number"),
        ("token", True, "token must be a whole number"),
        ("text", ["a"], "text must be a text, not a list"),
        ("strategy", "guess", "strategy must be one of argmax, "),
        ("top_logprobs", [{"token": 1, "text": "", "logprob": {}}], r"top_logprobs\[0\].logprob"),
        (
            "fork",
            {"branches": [], "winner": 0, "chosen_by": "user"},
            "fork.winner is 0, and there",
        ),
        ("index", 7, "index must be 2"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(trace, field, value, message):
    file, _ = trace
    lines = file.read_text().splitlines()
    lines[3] = json.dumps(json.loads(lines[3]) | {field: value})
    file.write_text("\n".join(lines))
    with pytest.raises(TraceError, match=f"line 4 is damaged: {message}"):
        read_trace(file)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", -1, "model must be a text"),
        ("seed", "x", "seed must be a whole number"),
        ("messages", [{"role": "user"}], "must have a role and a content"),
        ("versions", [], "versions must be an object"),
        ("profile", None, "profile must be an object"),
        ("profile", {"thresholds": {"low_entropy": "x"}}, "low_entropy must be a number"),
    ],
)
def test_a_header_of_the_wrong_type_is_named(trace, field, value, message):
    file, _ = trace
    header, *lines = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps(json.loads(header) | {field: value}), *lines]))
    with pytest.raises(TraceError, match=f"line 1 is damaged: .*{message}"):
        read_trace(file)


def test_a_trace_of_a_newer_program_of_the_same_version_is_read(trace):
    file, _ = trace
    expected = read_trace(file)
    header, *lines = map(json.loads, file.read_text().splitlines())
    header |= {"mood": "good"}
    header["profile"] |= {"courage": {"level": 1}}
    header["profile"]["base"] |= {"luck": 7}
    lines[0] |= {"mood": "better"}
    records = [header, lines[0], {"record": "remark", "text": "hm"}, *lines[1:]]
    file.write_text("\n".join(map(json.dumps, records)))
    assert read_trace(file) == expected


def test_an_older_file_takes_what_it_lacks_from_the_reference(trace):
    file, _ = trace
    header, *lines = file.read_text().splitlines()
    older = json.loads(header)
    del older["profile"]["think"]["min_gap"], older["versions"]
    file.write_text("\n".join([json.dumps(older), *lines]))
    again = read_trace(file).header
    assert again.profile == HEADER.profile
    assert again.versions == {}, "not those that are installed here"


def test_a_trace_of_the_version_before_is_read_and_what_changed_is_told(trace, caplog):
    file, _ = trace
    header, first, *lines = map(json.loads, file.read_text().splitlines())
    former = {"text": " x", "score": -1.3, "mean_logprob": -1.0, "mean_entropy": 3.0}
    del first["fork"]
    first["branch"] = {"rollouts": [{"tokens": [1], **former}], "winner": 0, "chosen_by": "score"}
    header["profile"]["branch"] |= {"margin": 0.1, "ask_margin": 0.2, "entropy_weight": 0.1}
    file.write_text("\n".join(map(json.dumps, [header | {"version": 1}, first, *lines])))
    with caplog.at_level("INFO"):
        again = read_trace(file)
    assert "version 1: its forks were compared by mean log p − λ · mean H" in caplog.text
    assert again.header.profile == HEADER.profile
    (branch,) = again.steps[0].fork.branches
    assert (branch.lead, branch.error, branch.mean_logprob) == (None, None, -1.0)


def test_a_trace_holds_nothing_that_a_terminal_obeys(tmp_path):
    file = tmp_path / "trace.jsonl"
    text = "\x9b31m \x7f \u2028 \ud800 é"
    header = replace(HEADER, messages=[{"role": "user", "content": text}])
    list(recorded([make_step(0, text)], file, header))
    assert not set(file.read_text("utf-8")) & set(text) - set("31m é")
    again = read_trace(file)
    assert again.steps[0].text == text.replace("\ud800", "?"), "UTF-8 cannot hold a lone surrogate"
    assert again.header.messages[0]["content"] == again.steps[0].text


def test_brackets_without_end_are_damage(trace):
    file, _ = trace
    lines = file.read_text().splitlines()
    lines[3] = '{"record": ' + "[" * 100_000
    file.write_text("\n".join(lines))
    with pytest.raises(TraceError, match="line 4 is damaged"):
        read_trace(file)


def test_a_profile_classifies_its_own_steps_as_it_did(trace):
    _, steps = trace
    profile = HEADER.profile
    assert classify(steps, profile) == [step.strategy for step in steps]
    calm = profile.replace({"thresholds": {"low_entropy": 99, "low_varentropy": 999}})
    assert set(classify(steps, calm)) == {"argmax"}


@pytest.mark.parametrize("version", [1, 2])
def test_fields_are_read_under_their_former_names(trace, version):
    file, _ = trace
    steps = read_trace(file).steps
    header, *records = map(json.loads, file.read_text().splitlines())
    fork = asdict(Fork((Branch((1,), " x", -1.0, 2.0, lead=0.0, error=0.0),), 0))
    records[0] |= {"proposed": 2, "accepted": 1, "triggered_at": 0, "fork": fork}
    expected = replace(steps[0], fork=Fork(**fork | {"branches": (Branch(**fork["branches"][0]),)}))
    records = [as_before(record) if record["record"] == "step" else record for record in records]
    header["profile"] = renamed_back(header["profile"], old_names.SECTIONS)
    file.write_text("\n".join(map(json.dumps, [header | {"version": version}, *records])))
    again = read_trace(file)
    assert again.header.profile == HEADER.profile
    assert again.steps == [replace(expected, triggered_at=0), *steps[1:]]
    assert (again.steps[0].proposed, again.steps[0].accepted) == (2, 1)


def as_before(step):
    """Return the record of a step with the names of versions 1 and 2."""
    fork = step["fork"] and renamed_back(step["fork"], old_names.FORK)
    return renamed_back(step | {"fork": fork}, old_names.STEP)


def renamed_back(record, names):
    """Return a record as it was written before its fields were renamed."""
    former = {now: then for then, now in names.items()}
    return {former.get(name, name): value for name, value in record.items()}
