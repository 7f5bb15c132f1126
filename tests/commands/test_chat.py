"""`entropix chat --plain` on a tiny model: lines in, answers out."""

import io
import json
from dataclasses import replace

import pytest

from entropix_mlx import cli
from entropix_mlx.answer.writer import Writer
from entropix_mlx.traces.trace import read_trace


@pytest.fixture
def chat(tiny_folder, capsys, monkeypatch):
    def chat(*lines, options=()):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
        code = cli.main(
            ["chat", "--plain", "--model", str(tiny_folder), "-m", "6", "--seed", "1", *options]
        )
        return code, *capsys.readouterr()

    return chat


def answers(file):
    turns = json.loads(file.read_text())["turns"]
    return [[answer["text"] for answer in turn["answers"]] for turn in turns]


def test_a_line_is_a_question(chat, tmp_path):
    file = tmp_path / "talk.json"
    code, out, err = chat("One?", "", "Two?", f"/save {file}")
    assert code == 0
    texts = answers(file)
    assert len(texts) == 2
    assert out == "".join(f"{text}\n" for (text,) in texts)
    assert "tokens/s" in err
    assert "\x1b" not in out + err


def test_commands(chat, tmp_path):
    file, again = tmp_path / "talk.json", tmp_path / "again.json"
    code, out, err = chat(
        "One?", "/regenerate", "/fork 2 66", "/select 1", f"/save {file}", "/new", "Two?",
        f"/load {file}", "/edit Three?", "/system Be brief.", f"/save {again}", "/help", "/quit",
        "never read",
    )  # fmt: skip
    assert code == 0, err
    assert len(answers(file)[0]) == 3
    record = json.loads(again.read_text())
    assert record["system_prompt"] == "Be brief."
    assert [turn["question"] for turn in record["turns"]] == ["Three?"]
    assert "/regenerate" in err
    assert "1 choice" in err
    assert out.count(answers(file)[0][0]) == 2, "/select shows the answer it takes"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/regenerate", "nothing was asked"),
        ("/edit x", "nothing was asked"),
        ("/fork one 2", "'one' is not a number"),
        ("/select", "'' is not a number"),
        ("/select " + "9" * 5000, "is not a number"),
        ("/nonsense", "no command /nonsense"),
        ("/save", "needs a file"),
        ("/load /absent/file", "cannot read"),
        ("/save ~nobody-at-all/file", "no home folder is known for ~nobody-at-all/file"),
        ("/load ~nobody-at-all/file", "no home folder is known for ~nobody-at-all/file"),
        ("x" * 300, "shorten the message"),
    ],
)
def test_a_mistake_is_a_message_and_the_conversation_goes_on(chat, line, message):
    code, out, err = chat(line, "Hello?")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert len(out) > 1


def test_files_lie_in_the_home_folder_if_named_so(chat, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = ("One?", "/save ~/talk.json", "/new", "/load ~/talk.json", "/select 1")
    code, _, err = chat(*lines, options=("--trace=~/traces",))
    assert code == 0, err
    assert (tmp_path / "talk.json").is_file()
    assert (tmp_path / "traces" / "001.jsonl").is_file()


def test_a_terminal_does_not_obey_an_answer(chat, monkeypatch, tmp_path):
    def write(self, *arguments, **told):
        return replace(original(self, *arguments, **told), text="\x1b[2J")

    original = Writer.write
    monkeypatch.setattr(Writer, "write", write)
    lines = ("One?", "/select 1")
    assert chat(*lines)[1] == ("\x1b[2J" * 6 + "\n") * 2, "in a pipe or a file as it is"
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    chat(*lines, options=("--color", "never"))
    assert screen.getvalue() == ("␛[2J" * 6 + "\n") * 2


def test_steps_say_what_a_fork_takes(chat):
    code, out, err = chat("One?", "/steps", "/fork 2", "/fork 2 66")
    listed = [line.split(maxsplit=2) for line in out.splitlines() if line.startswith("   ")]
    assert [int(line[0]) for line in listed] == list(range(len(listed)))
    assert len(listed) > 2
    assert "%" in listed[0][2]
    assert code == 2
    assert "write /fork STEP TOKEN" in err


def test_every_answer_is_recorded(chat, tmp_path):
    talk, folder = tmp_path / "talk.json", tmp_path / "traces"
    lines = ("One?", "/fork 2 66", "/system Be brief.", "Two?", f"/save {talk}")
    code, _, err = chat(*lines, options=("--trace", str(folder)))
    assert code == 0, err
    traces = [read_trace(file) for file in sorted(folder.iterdir())]
    recorded = ["".join(step.text for step in trace.steps) for trace in traces]
    assert recorded == [text for turn in answers(talk) for text in turn]
    first, forked, second = traces
    assert forked.steps[:2] == first.steps[:2]
    assert forked.header.prompt_tokens == first.header.prompt_tokens
    assert [m["role"] for m in second.header.messages] == ["system", "user", "assistant", "user"]
    assert all(trace.totals["usage"]["completion_tokens"] == len(trace.steps) for trace in traces)


def test_a_second_chat_keeps_the_traces_of_the_first(chat, tmp_path):
    folder = tmp_path / "traces"
    for _ in range(2):
        chat("One?", options=("--trace", str(folder)))
    assert sorted(file.name for file in folder.iterdir()) == ["001.jsonl", "002.jsonl"]


def test_a_trace_folder_that_cannot_be_made_is_told_at_once(chat, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = chat("One?", options=("--trace", str(tmp_path / "file")))
    assert code == 2
    assert "cannot write to the folder" in err
    assert "loading" not in err


def test_a_full_context_is_told(chat):
    code, _, err = chat(*(f"This is question number {n}, and it is long?" for n in range(8)))
    assert code == 0
    assert "the model no longer sees the first" in err


def test_an_option_that_does_not_fit_is_told_before_the_model_is_loaded(chat):
    code, _, err = chat(options=("--sampler", "magic"))
    assert code == 2
    assert "no sampler" in err
    assert "loading" not in err


def test_a_closed_stdin_is_a_message(chat, monkeypatch, tiny_folder, capsys):
    monkeypatch.setattr("sys.stdin", None)
    assert cli.main(["chat", "--plain", "--model", str(tiny_folder)]) == 2
    assert "no stdin" in capsys.readouterr().err


def test_the_full_screen_needs_a_terminal(chat, tiny_folder, capsys):
    assert cli.main(["chat", "--model", str(tiny_folder)]) == 2
    assert "add --plain in a pipe" in capsys.readouterr().err


def test_the_full_screen_begins_with_the_options(monkeypatch, tiny_folder, tmp_path):
    started = []

    def run(app):
        started.append(app)

    monkeypatch.setattr("tui.app.ChatApp.run", run)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    given = ["--seed", "3", "--ask", "--no-think", "--trace", str(tmp_path / "traces")]
    assert cli.main(["chat", "--model", str(tiny_folder), *given]) == 0
    (app,) = started
    assert app._settings.seed == 3
    assert app._settings.changes["think"] == {"max_insertions": 0}
    assert app._settings.top_logprobs > 0
    assert app._ask
    assert app.status.model == tiny_folder.name
    assert (tmp_path / "traces").is_dir()


class Terminal(io.StringIO):
    def isatty(self):
        return True
