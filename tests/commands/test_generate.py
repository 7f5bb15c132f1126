"""`entropix generate` for one prompt, in process, on a tiny model."""

import itertools
import json
import re

import pytest

from entropix_mlx import stream_generate
from entropix_mlx.palette import SWATCHES
from entropix_mlx.profiles.confidence import AnswerMetrics
from entropix_mlx.step import Origin, Source, Strategy
from entropix_mlx.traces.trace import read_trace
from tests.commands.conftest import Terminal


def lines(out):
    return [json.loads(line) for line in out.splitlines()]


def test_text_goes_to_stdout_and_statistics_to_stderr(generate):
    code, out, err = generate("-p", "hello", "-m", 12, "--seed", 4)
    assert (code, out[-1]) == (0, "\n")
    for part in ("seed 4", "12 tokens", "loading tiny"):
        assert part in err
    assert "\x1b" not in out + err
    assert generate("-p", "hello", "-m", 12, "--seed", 4, "--quiet") == (0, out, "")
    assert generate("-p", "caf\udce9", "-m", 2)[0] == 0, "bytes that are not UTF-8"


def test_json_is_one_object(generate):
    code, out, _ = generate("-p", "hello", "-m", 9, "--seed", 4, "--json")
    record = json.loads(out)
    assert code == 0
    assert (record["finish_reason"], record["seed"]) == ("length", 4)
    assert record["usage"]["completion_tokens"] == sum(record["strategies"].values()) == 9
    assert record["timings"]["tokens_per_second"] > 0
    assert generate("-p", "hello", "-m", 9, "--seed", 4)[1] == record["text"] + "\n"


def test_jsonl_is_a_step_a_line(generate):
    steps = lines(generate("-p", "hello", "-m", 5, "--jsonl", "--top-logprobs", 3)[1])
    assert [step["index"] for step in steps] == [0, 1, 2, 3, 4]
    assert all(len(step["top_logprobs"]) == 3 for step in steps)
    assert steps[0]["origin"] == "sampled"


def test_colours_and_glyphs(generate):
    _, plain, _ = generate("-p", "hello", "-m", 9, "--seed", 4)
    _, out, err = generate("-p", "hello", "-m", 9, "--seed", 4, "--color", "always")
    assert all("\x1b[38;2;" in text for text in (out, err))
    assert re.sub("\x1b\\[[0-9;]*m", "", out) == plain
    assert len({swatch.glyph for swatch in SWATCHES.values()}) == len(Strategy)


@pytest.mark.parametrize("colour", ["never", "always"])
def test_a_terminal_does_not_obey_the_model(generate, monkeypatch, colour):
    asked = ("-p", "x", "--regex", "\x1b")
    assert generate(*asked)[1] == "\x1b\n", "in a pipe or a file as it is"
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    assert generate(*asked, "--color", colour)[0] == 0
    assert re.sub("\x1b\\[[0-9;]*m", "", screen.getvalue()) == "␛\n"


def test_repetitions_are_penalized(generate):
    steps = lines(generate("-p", "hello", "-m", 9, "--repetition-penalty", 100, "--jsonl")[1])
    assert len({step["token"] for step in steps}) == 9


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-p", "", "--ignore-chat-template"], "prompt"),
        (["-p", "x" * 500], "context"),
        (["-p", "x", "--temp", "nan"], "temperature"),
        (["-p", "x", "--top-logprobs", "-1"], "top_logprobs"),
        (["-p", "x", "--sampler", "magic"], "sampler"),
        (["-p", "x", "--speculate", "off"], "Did you mean --speculation?"),
        (["--promts", "x"], "Did you mean --prompts?"),
        (["-p", "x", "--model", ""], "--model"),
        (["-p", "x", "--model", "absent/model/x"], "no model"),
        (["-p", "x", "--trace", "~nobody-at-all/t"], "~nobody-at-all/t"),
        (["-p", "x", "--ignore-chat-template", "--system-prompt", "y"], "--system-prompt"),
        (["-p", "x", "--chat-template-config", "[" * 100_000], "JSON"),
        (["-p", "x", "--notes", "/absent"], "/absent"),
        (["-p", "x", "--resume"], "--resume"),
        (["-p", "x", "--n", "2", "--resume"], "--output"),
        (["-p", "x", "--n", "2", "--jsonl"], "--jsonl"),
        (["-p", "x", "--n", "2", "--trace", "t"], "--trace"),
        (["-p", "x", "--attention-map"], "--trace"),
        (["-p", "x", "--n", "0"], "--n"),
        (["-p", "x", "--answers", "0"], "answers"),
        (["-p", "x", "--answers", "all"], "answers"),
        (["-p", "x", "--answers", "2", "--trace", "t"], "--answers"),
        (["-p", "x", "--prompts", "y"], "--prompts"),
        ([], "--prompt"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(generate, arguments, named):
    code, out, err = generate(*arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert "Traceback" not in err


def test_a_trace_has_what_each_token_looked_at(generate, tmp_path):
    file = tmp_path / "trace.jsonl"
    asked = ["-p", "hello", "-m", 6, "--seed", 4, "--trace", file]
    assert generate(*asked, "--attention-map")[0] == 0
    trace = read_trace(file)
    assert list(trace.attention) == [0, 1, 2, 3, 4, 5]
    assert len(trace.attention[5].tokens) == 5
    assert generate(*asked)[0] == 0
    assert not read_trace(file).attention


def test_an_interrupt_keeps_the_steps_so_far(generate, monkeypatch):
    def interrupted(*given, **named):
        yield from itertools.islice(stream_generate(*given, **named), 4)
        raise KeyboardInterrupt

    monkeypatch.setattr("entropix_mlx.api.generate.stream_generate", interrupted)
    code, out, _ = generate("-p", "hello", "--seed", 4, "--json")
    record = json.loads(out)
    assert (code, record["finish_reason"]) == (130, "interrupted")
    assert record["usage"]["completion_tokens"] == 4


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """Return a folder of notes; its index is kept in a folder of this test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("hello is a word")
    (folder / "b.txt").write_bytes(b"\xff")
    return folder


ASKING = ("--seed", 4, "--set", "notes.when='start'")


def test_a_passage_of_the_notes_is_quoted_with_its_place(generate, notes, tmp_path):
    trace = tmp_path / "t.jsonl"
    code, out, err = generate("-p", "hello", "-m", 200, *ASKING, "--notes", notes, "--trace", trace)
    assert code == 0
    assert "According to a.md, line 1: “hello is a word” So" in out
    for part in ("1 passage", "passages 1, files 1", "b.txt is left out"):
        assert part in err
    header, *recorded = lines(trace.read_text())
    assert header["notes"] == str(notes)
    sources = [line["source"] for line in recorded if line.get("source")]
    assert sources == [{"name": "a.md", "line": 1, "page": None, "heading": ""}]
    found = read_trace(trace).steps
    assert found[0].source == Source("a.md", 1)
    own = tuple(step.logprob for step in found if step.origin is Origin.SAMPLED)
    assert AnswerMetrics.of(found).logprob == own


def test_notes_without_a_matching_passage_change_nothing(generate, notes):
    asked = ("-p", "bye", "-m", 40, *ASKING, "--quiet")
    assert generate(*asked, "--notes", notes) == generate(*asked)


UNSURE = ("--budget", "8", "--set", "answers.count=4")


def test_several_answers_and_the_chosen_one(generate):
    asked = ("-p", "hello", "-m", 6, "--seed", 4, "--answers", "auto", *UNSURE)
    code, out, err = generate(*asked)
    record = json.loads(generate(*asked, "--json")[1])
    choice = record["answers"]
    assert (code, out) == (0, record["text"] + "\n")
    assert record["text"] == choice["answers"][choice["chosen"]]["text"]
    assert len(choice["answers"]) == 4
    assert f"{choice['forward_tokens']} forward tokens" in err
    *steps, last = lines(generate(*asked, "--jsonl")[1])
    assert "".join(step["text"] for step in steps) == record["text"]
    assert last["answers"] == choice


def test_several_answers_to_each_line_of_a_file(generate, tmp_path):
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    file = tmp_path / "answers.jsonl"
    asked = ("--prompts", tmp_path / "prompts.txt", "-o", file, "-m", 4, "--seed", 1)
    code, _, err = generate(*asked, "--answers", 3)
    assert code == 0
    assert "2 of 2 prompts" in err
    for record in lines(file.read_text()):
        choice = record["answers"]
        assert record["options"]["answers"] == len(choice["answers"]) == 3
        assert record["text"] == choice["answers"][choice["chosen"]]["text"]
    assert generate(*asked, "--answers", 3, "--resume")[0] == 0
