"""The command line, in process, on a tiny model: what it prints where, and how it fails."""

import io
import json
import re
from dataclasses import replace

import pytest

from entropix_mlx import cli
from entropix_mlx.answer.writer import Writer
from entropix_mlx.commands.shared import answers, output
from entropix_mlx.palette import LOOKS
from entropix_mlx.profiles.confidence import Measured
from entropix_mlx.step import Branch, Fork, Origin, Source, Strategy
from entropix_mlx.traces.reading import read_trace


@pytest.fixture
def run(tiny_folder, capsys):
    def run(*arguments, model=tiny_folder):
        try:
            code = cli.main(["generate", "--model", str(model), *arguments])
        except SystemExit as stop:  # argparse's own refusals
            code = stop.code
        return code, *capsys.readouterr()

    return run


def test_text_goes_to_stdout_and_statistics_to_stderr(run):
    code, out, err = run("-p", "hello", "-m", "12", "--seed", "4")
    assert code == 0
    assert out.endswith("\n")
    assert "seed 4" in err
    assert "12 tokens" in err
    assert "loading tiny" in err
    assert "\x1b" not in out + err
    assert run("-p", "hello", "-m", "12", "--seed", "4", "--verbose", "false") == (0, out, "")


def test_json_is_one_object(run):
    code, out, _ = run("-p", "hello", "-m", "9", "--seed", "4", "--json")
    record = json.loads(out)
    assert code == 0
    assert record["finish_reason"] == "length"
    assert record["usage"]["completion_tokens"] == 9
    assert sum(record["strategies"].values()) == 9
    assert record["seed"] == 4
    assert record["timings"]["tokens_per_second"] > 0
    _, text, _ = run("-p", "hello", "-m", "9", "--seed", "4")
    assert record["text"] + "\n" == text


def test_jsonl_is_a_step_a_line(run):
    _, out, _ = run("-p", "hello", "-m", "5", "--jsonl", "--top-logprobs", "3")
    steps = [json.loads(line) for line in out.splitlines()]
    assert [step["index"] for step in steps] == [0, 1, 2, 3, 4]
    assert all(len(step["top_logprobs"]) == 3 for step in steps)
    assert steps[0]["origin"] == "sampled"


def test_colours_and_glyphs(run, monkeypatch):
    _, plain, _ = run("-p", "hello", "-m", "9", "--seed", "4")
    _, out, err = run("-p", "hello", "-m", "9", "--seed", "4", "--color", "always")
    assert "\x1b[38;2;" in out
    assert "\x1b[38;2;" in err
    painted = out.replace("\x1b[0m", "")
    for look in LOOKS.values():
        painted = painted.replace("\x1b[38;2;{};{};{}m".format(*look.rgb), "")
    assert painted == plain
    assert len({look.glyph for look in LOOKS.values()}) == len(Strategy)


@pytest.mark.parametrize(
    ("environment", "tty", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_automatic_colour(monkeypatch, environment, tty, colour):
    class Stream:
        def isatty(self):
            return tty

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert output.use_colour("auto", Stream()) is colour
    assert output.use_colour("always", Stream())
    assert not output.use_colour("never", Stream())


class Terminal(io.StringIO):
    def isatty(self):
        return True


CONTROLS = {"\x1b[2J": "␛[2J", "\r": "␍", "\x7f": "␡", "\x9b2J": "\ufffd2J", "\t\n": "\t\n"}


@pytest.mark.parametrize("colour", ["never", "always"])
@pytest.mark.parametrize(("written", "shown"), CONTROLS.items())
def test_a_terminal_does_not_obey_the_model(run, monkeypatch, written, shown, colour):
    def write(self, *arguments, **told):
        return replace(original(self, *arguments, **told), text=written)

    original = Writer.write
    monkeypatch.setattr(Writer, "write", write)
    arguments = ["-p", "x", "-m", "1", "--seed", "4", "--color", colour]
    _, out, _ = run(*arguments)
    assert written in out, "in a pipe or a file as it is"
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    assert run(*arguments)[0] == 0
    assert shown in screen.getvalue()
    assert shown == written or written not in screen.getvalue()


def test_a_terminal_is_asked_in_printable_characters(monkeypatch):
    branch = Branch((1,), "a\x1b]0;b\n", -1.0, 1.0, -1.0, lead=0.0, error=0.0)
    monkeypatch.setattr("sys.stdin", None)
    for stream, text in ((Terminal(), "a␛]0;b⏎"), (io.StringIO(), "a\x1b]0;b⏎")):
        monkeypatch.setattr("sys.stderr", stream)
        assert answers.choose_branch(Fork((branch,), 0)) == 0
        assert text in stream.getvalue()


def test_a_home_folder_is_found_without_the_shell(run, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("-p", "x", "-m", "1", "--trace=~/trace.jsonl")[0] == 0
    assert (tmp_path / "trace.jsonl").is_file()


EVERYWHERE = """
[thresholds]
low_entropy = -1
branch_max_entropy = 99
branch_min_varentropy = -1
[branch]
min_gap = 0
ask_margin = 1e6
"""


@pytest.fixture
def forks(run, tmp_path):
    """Run with a profile that forks wherever it may, and return the steps."""
    profile = tmp_path / "forks.toml"
    profile.write_text(EVERYWHERE)

    def forks(*arguments):
        code, out, err = run(
            "-p",
            "hello",
            "-m",
            "24",
            "--seed",
            "4",
            "--jsonl",
            "--profile",
            str(profile),
            *arguments,
        )
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()], err

    return forks


def test_forks_are_followed_as_the_options_say(forks):
    steps, err = forks("--branch-width", "3", "--branch-depth", "2")
    branches = [step["fork"] for step in steps if step["fork"]]
    assert branches
    assert {len(fork["branches"]) for fork in branches} == {3}
    assert max(len(r["tokens"]) for b in branches for r in b["branches"]) == 2
    assert f"{len(branches)} forks" in err
    steps, _ = forks("--no-branch")
    assert not any(step["fork"] for step in steps)


@pytest.mark.usefixtures("anywhere")
def test_thinking_can_be_forbidden(run, tmp_path):
    profile = tmp_path / "lost.toml"
    profile.write_text(
        "[thresholds]\nlow_entropy = -1\nthink_min_entropy = -1\nthink_max_varentropy = 99\n"
    )
    texts = [
        run("-p", "hello", "-m", "12", "--profile", str(profile), *more)[1]
        for more in ([], ["--no-think"])
    ]
    assert " Wait," in texts[0]
    assert " Wait," not in texts[1]


def test_what_is_drawn_from_can_be_changed(run):
    changed = ("--logit-bias", "65=100", "--logit-bias", "66=-2.5", "--presence-penalty", "0.1")
    code, out, _ = run("-p", "hello", "-m", "9", "--sampler", "temperature", *changed, "--json")
    assert code == 0
    assert json.loads(out)["text"] == "b" * 9  # the tiny tokenizer's 65
    _, out, _ = run("-p", "hello", "-m", "9", "--frequency-penalty", "100", "--jsonl")
    assert len({json.loads(line)["token"] for line in out.splitlines()}) == 9
    code, _, err = run("-p", "hello", "--logit-bias", "A=1")
    assert (code, "TOKEN=BIAS, a token's id and a number, not 'A=1'" in err) == (2, True)
    code, _, err = run("-p", "hello", "--logit-bias", "258=1")
    assert (code, "logit_bias names token 258" in err) == (2, True)


@pytest.mark.parametrize(
    ("typed", "winner"), [("2\n", 1), ("nonsense\n9\n3\n", 2), ("\n", None), ("", None)]
)
def test_ask_reads_a_number(forks, monkeypatch, typed, winner):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    steps, err = forks("--ask", "--branch-width", "3")
    record = steps[0]["fork"]
    ahead = [
        number
        for number, branch in enumerate(record["branches"])
        if branch["stopped"] != "behind" and branch["lead"] > branch["error"]
    ]
    best = max(ahead, key=lambda number: record["branches"][number]["lead"], default=0)
    assert record["winner"] == (best if winner is None else winner)
    assert record["chosen_by"] == "user"
    assert steps[0]["origin"] == "chosen"
    assert "which one? 1 to 3" in err
    assert "the others are compared with this one" in err
    assert re.search(r"[+-]\d\.\d\d ± \d\.\d\d nats", err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", ""], "the prompt is empty"),
        (["-p", "  \n"], "the prompt is empty"),
        (["-p", "", "--ignore-chat-template"], "the prompt is empty"),
        (["-p", "x" * 500], "the model's context holds 256"),
        (["-p", "x", "--temp", "-1"], "temperature must be a number of at least 0, not -1"),
        (["-p", "x", "--temp", "nan"], "temperature must be a number, not nan"),
        (["-p", "x", "--top-p", "1.2"], "top_p must be a number above 0 and at most 1, not 1.2"),
        (["-p", "x", "--top-k", "-3"], "top_k must be"),
        (["-p", "x", "--top-k", "0"], "top_k of the entropix sampler must be a whole number of at"),
        (["-p", "x", "--top-k", "9" * 20], "top_k must be a whole number of at most 16777216"),
        (["-p", "x", "--set", "base.top_k=" + "9" * 20], "base.top_k must be a whole number of"),
        (["-p", "x", "--set", "base.top_k=" + "9" * 5000], "not FIELD=VALUE"),
        (["-p", "x", "--set", "thresholds.low_entropy=1e39"], "low_entropy must be infinite or"),
        (["-p", "x", "--set", "branch.margin=1e39"], "branch.margin must be a number of at most"),
        (["-p", "x", "--seed", "9" * 30], "seed must be a whole number of at most"),
        (["-p", "x", "--min-p", "2"], "min_p must be a number between 0 and 1"),
        (["-p", "x", "--max-tokens", "0"], "a positive whole number, or -1"),
        (["-p", "x", "--max-tokens", "many"], "a positive whole number, or -1"),
        (["-p", "x", "--top-logprobs", "-1"], "a whole number of at least 0"),
        (["-p", "x", "--verbose", "maybe"], "true or false"),
        (["-p", "x", "--sampler", "magic"], "no sampler 'magic'"),
        (["-p", "x", "--sampler", "cntp", "--top-p", "0.5"], "cntp sampler takes no top_p"),
        (["-p", "x", "--branch-width", "0"], "a positive whole number"),
        (
            ["-p", "x", "--branch-width", "65"],
            "branch.width must be a whole number",
        ),
        (["-p", "x", "--branch-depth", "many"], "a positive whole number"),
        (["-p", "x", "--temp", "warm"], "a number, not 'warm'"),
        (["-p", "x", "--top-k", "many"], "a whole number"),
        (
            ["-p", "x", "--speculation", "maybe"],
            "not 'maybe'",
        ),
        (["-p", "x", "--sampler", "greedy", "--temp", "1"], "takes no temperature"),
        (["-p", "x", "--profile", "nope"], "no profile 'nope'"),
        (["-p", "x", "--attention-layers", "some"], "invalid choice"),
        (["-p", "x", "--json", "--jsonl"], "not allowed with"),
        (["-p", "x", "--model", ""], "argument --model: it is empty"),
        (
            ["-p", "x", "--trace", "~nobody-at-all/t"],
            "no home folder is known for ~nobody-at-all/t",
        ),
        (["-p", "x", "--ignore-chat-template", "--system-prompt", "y"], "--system-prompt needs"),
        ([], "required"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_no_such_model_is_a_message(run, tmp_path):
    code, _, err = run("-p", "x", model=tmp_path / "absent" / "model" / "x")
    assert code == 2
    assert "no model" in err


def test_an_interrupt_keeps_what_there_is(run, monkeypatch):
    original = Writer.write

    def interrupted(self, *arguments, **told):
        if self.index == 4:
            raise KeyboardInterrupt
        return original(self, *arguments, **told)

    monkeypatch.setattr(Writer, "write", interrupted)
    code, out, _ = run("-p", "hello", "--seed", "4", "--json")
    assert code == 130
    record = json.loads(out)
    assert record["finish_reason"] == "interrupted"
    assert record["usage"]["completion_tokens"] == 4


def test_bytes_that_are_not_utf8_are_no_traceback(run):
    code, _, _ = run("-p", "caf\udce9", "-m", "2")
    assert code == 0


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


def test_a_passage_of_the_notes_is_quoted_with_its_place(run, notes, tmp_path):
    trace = tmp_path / "t.jsonl"
    options = ("--notes", str(notes), "--set", "notes.min_entropy=0", "--trace", str(trace))
    code, out, err = run("-p", "hello", "-m", "200", "--seed", "4", *options)
    assert code == 0
    assert "According to a.md, line 1: “hello is a word” So" in out
    assert "1 passage" in err
    assert "notes: passages 1, files 1" in err
    assert "b.txt is left out: not a text in UTF-8" in err
    header, *lines = map(json.loads, trace.read_text().splitlines())
    assert header["notes"] == str(notes)
    sources = [line["source"] for line in lines if line.get("source")]
    assert sources == [{"name": "a.md", "line": 1, "page": None, "heading": ""}]
    found = read_trace(trace).steps
    assert found[0].source == Source("a.md", 1)
    assert Measured.of(found).logprob == tuple(
        step.logprob for step in found if step.origin is Origin.SAMPLED
    )


def test_a_folder_of_notes_that_is_missing_is_told_before_the_model_loads(run, tmp_path):
    code, out, err = run("-p", "hello", "--notes", str(tmp_path / "nothing"))
    assert (code, out) == (2, "")
    assert err.startswith("entropix: there is no folder")


def test_notes_that_say_nothing_about_it_change_nothing(run, notes):
    options = ("-m", "40", "--seed", "4", "--set", "notes.min_entropy=0", "--verbose", "false")
    plain = run("-p", "bye", *options)
    assert run("-p", "bye", "--notes", str(notes), *options) == plain
