"""`entropix read`, in process, on a tiny model."""

import io
import json
import sys

import pytest

from entropix_mlx import cli
from entropix_mlx.step import Origin
from entropix_mlx.traces.report import render
from entropix_mlx.traces.trace import read_trace

TEXT = "The quick brown fox, naïve 💥.\n"


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


@pytest.fixture
def run(tiny_folder, capsys):
    def run(*arguments):
        code = cli.main(["read", "--model", str(tiny_folder), *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def test_the_text_is_printed_and_its_totals_told(run, text):
    code, out, err = run(text)
    assert (code, out) == (0, TEXT)
    assert f"reading {len(TEXT.encode())} tokens" in err
    assert "perplexity" in err
    _, out, _ = run(text, "--color", "always", "--verbose", "false")
    assert "\x1b[38;2;" in out


def test_one_object_or_a_token_a_line(run, text):
    _, out, _ = run(text, "--json")
    totals = json.loads(out)
    assert totals["text"] == TEXT
    assert totals["finish_reason"] == "read"
    _, out, _ = run(text, "--jsonl", "--top-logprobs", 2)
    steps = [json.loads(line) for line in out.splitlines()]
    assert {step["origin"] for step in steps} == {"read"}
    assert all(len(step["top_logprobs"]) == 2 for step in steps)
    assert sum(step["logprob"] for step in steps) == pytest.approx(totals["logprob"], rel=1e-4)


def test_a_trace_can_be_shown(run, text, tmp_path):
    file = tmp_path / "trace.jsonl"
    code, _, _ = run(text, "--output", file, "--set", "thresholds.low_entropy=2.0")
    trace = read_trace(file)
    assert code == 0
    assert trace.finish_reason == "read"
    assert trace.header.messages == []
    assert trace.header.profile.thresholds.low_entropy == 2
    assert "".join(step.text for step in trace.steps) == TEXT
    assert {step.origin for step in trace.steps} == {Origin.READ}
    assert f"{len(trace.steps)} read" in render([trace])


def test_a_text_can_be_an_answer(run, text, tmp_path):
    file = tmp_path / "trace.jsonl"
    run(text, "-p", "Why?", "--system-prompt", "Be brief.", "-o", file)
    header = read_trace(file).header
    assert [m["content"] for m in header.messages] == ["Be brief.", "Why?"]
    assert header.prompt_tokens > 1


def test_stdin_is_read(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    assert run("-")[1] == "abc\n"


def test_a_text_that_is_too_long_is_refused_or_split(run, tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("a" * 300)
    code, _, err = run(file)
    assert code == 2
    assert "300 tokens" in err
    assert "--split" in err
    code, out, _ = run(file, "--split")
    assert (code, out) == (0, "a" * 300 + "\n")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", (), "empty"),
        (b"\xff\xfe\xff", (), "UTF-8"),
        (None, (), "cannot read"),
        (b"a", ("--system-prompt", "x"), "--prompt"),
        (b"a", ("--sampler", "nosuch"), "nosuch"),
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
    code, _, err = run(text, "--output", text)
    assert code == 2
    assert "write to another file" in err
    assert text.read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize("target", [".", "no/such/trace.jsonl"])
@pytest.mark.parametrize(
    "command", [["read", "text.txt", "-o"], ["generate", "-p", "a", "--trace"]]
)
def test_a_trace_that_cannot_be_written_is_told_before_a_model_is_loaded(
    command, target, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a text")
    assert cli.main([*command, target, "--model", "no_such_model"]) == 2
    assert f"cannot write {target}: name a file" in capsys.readouterr().err
