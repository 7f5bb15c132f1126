"""`entropix read`, in process, on a tiny model."""

import io
import json
import math
import sys

import pytest

from entropix_mlx.errors import TraceError
from entropix_mlx.step import Origin
from entropix_mlx.traces.page import recorded
from entropix_mlx.traces.trace import read_trace

TEXT = "The quick brown fox, naïve 💥.\n"


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.fixture
def run(entropix, tiny_folder):
    return lambda *arguments: entropix("read", "--model", tiny_folder, *arguments)


def test_the_text_is_printed_and_then_its_totals(run, text):
    code, out, err = run(text)
    assert (code, out) == (0, TEXT)
    assert f"reading {len(TEXT.encode())} tokens" in err
    assert "perplexity" in err
    _, out, _ = run(text, "--color", "always", "--quiet")
    assert "\x1b[38;2;" in out


def test_one_object_or_a_token_a_line(run, text):
    totals = json.loads(run(text, "--json")[1])
    assert (totals["text"], totals["finish_reason"]) == (TEXT, "read")
    _, out, _ = run(text, "--jsonl", "--top-logprobs", 2)
    steps = [json.loads(line) for line in out.splitlines()]
    assert {(step["origin"], len(step["top_logprobs"])) for step in steps} == {("read", 2)}
    nats = -sum(step["logprob"] for step in steps)
    assert totals["logprob"] == pytest.approx(-nats, rel=1e-4)
    assert totals["perplexity"] == pytest.approx(math.exp(nats / len(steps)), rel=1e-4)
    assert totals["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(TEXT.encode()))


def test_a_trace_can_be_shown(run, text, tmp_path):
    file = tmp_path / "trace.jsonl"
    code, _, _ = run(text, "--output", file, "--set", "thresholds.low_entropy=2.0")
    trace = read_trace(file)
    assert (code, trace.finish_reason, trace.header.messages) == (0, "read", [])
    assert trace.header.profile.thresholds.low_entropy == 2
    assert "".join(step.text for step in trace.steps) == TEXT
    assert {step.origin for step in trace.steps} == {Origin.READ}
    assert recorded(trace)["totals"]["finish_reason"] == "read"


def test_a_text_can_be_an_answer(run, text, tmp_path):
    file = tmp_path / "trace.jsonl"
    run(text, "-p", "Why?", "--system-prompt", "Be brief.", "-o", file)
    header = read_trace(file).header
    assert [m["content"] for m in header.messages] == ["Be brief.", "Why?"]
    assert header.prompt_tokens > 1


def test_stdin_is_read(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    assert run("-")[1] == "abc\n"


def test_a_text_that_is_too_long_is_read_in_pieces(run, tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("a" * 300)
    assert run(file)[:2] == (0, "a" * 300 + "\n")
    assert run(file, "--attention-map", "-o", tmp_path / "trace.jsonl")[0] == 2


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", (), "empty"),
        (b"\xff\xfe\xff", (), "UTF-8"),
        (None, (), "cannot read"),
        (b"a", ("--system-prompt", "x"), "--prompt"),
        (b"a", ("--sampler", "nosuch"), "nosuch"),
        (b"a", ("--attention-map",), "--output"),
    ],
)
def test_a_mistake_is_a_message(run, tmp_path, content, options, message):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    code, out, err = run(file, *options)
    assert (code, out) == (2, "")
    assert message in err


def test_the_text_is_not_overwritten_by_its_trace(run, text):
    assert run(text, "--output", text)[0] == 2
    assert text.read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize("target", [".", "no/such/trace.jsonl"])
@pytest.mark.parametrize(
    "command", [["read", "text.txt", "-o"], ["generate", "-p", "a", "--trace"]]
)
def test_a_trace_that_cannot_be_written_is_an_error_before_a_model_is_loaded(
    command, target, tmp_path, monkeypatch, entropix
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a text")
    code, _, err = entropix(*command, target, "--model", "no_such_model")
    assert code == 2
    assert f"cannot write {target}" in err


def test_what_the_tokens_looked_at_is_recorded_and_shown(run, text, tmp_path):
    file = tmp_path / "trace.jsonl"
    assert run(text, "--output", file, "--attention-map")[0] == 0
    trace = read_trace(file)
    assert list(trace.attention) == [step.index for step in trace.steps]
    for each in trace.attention.values():
        assert 0 < each.prompt + sum(share for _, share in each.tokens) <= 1.001
    assert len(recorded(trace)["attention"]) == len(trace.attention)
    lines = file.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"attention"' in line)
    for tokens in ([[0, 2]], [[10**9, 0.1]], [["a", 0.1]], [[0]], "x", [[0.5, 0.1]]):
        record = json.dumps({"record": "attention", "index": 1, "prompt": 0.5, "tokens": tokens})
        file.write_text("".join([*lines[:at], record + "\n"]))
        with pytest.raises(TraceError):
            read_trace(file)
