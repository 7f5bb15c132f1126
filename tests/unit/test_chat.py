"""`entropix chat --plain` on a tiny model: lines in, answers out."""

import io
import json

import pytest

from entropix_mlx import cli


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
        ("/nonsense", "no command /nonsense"),
        ("/save", "needs a file"),
        ("/load /absent/file", "cannot read"),
        ("x" * 300, "shorten the message"),
    ],
)
def test_a_mistake_is_a_message_and_the_conversation_goes_on(chat, line, message):
    code, out, err = chat(line, "Hello?")
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert len(out) > 1


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


def test_the_full_screen_begins_with_the_options(monkeypatch, tiny_folder):
    started = []

    def run(app):
        started.append(app)

    monkeypatch.setattr("tui.app.ChatApp.run", run)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    assert (
        cli.main(["chat", "--model", str(tiny_folder), "--seed", "3", "--ask", "--no-think"]) == 0
    )
    (app,) = started
    assert app._settings.seed == 3
    assert app._settings.changes["think"] == {"max_insertions": 0}
    assert app._settings.top_logprobs > 0
    assert app._ask
    assert app._model_name == tiny_folder.name


class Terminal(io.StringIO):
    def isatty(self):
        return True
