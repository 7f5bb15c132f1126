"""`entropix chat` on a tiny model: with --plain, lines in, answers out."""

import io
import json

import pytest

from entropix_mlx.traces.trace import read_trace
from tests.commands.conftest import Terminal


@pytest.fixture
def chat(entropix, tiny_folder, monkeypatch):
    def chat(*lines, options=()):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
        asked = ("--plain", "--model", tiny_folder, "-m", 6, "--seed", 1)
        return entropix("chat", *asked, *options)

    return chat


def test_a_line_is_a_question(chat):
    code, out, err = chat("One?", "", "Two?")
    assert code == 0
    assert out.count("\n") >= 2
    assert "tokens/s" in err
    assert "\x1b" not in out + err


def test_fields_of_a_structured_answer_are_listed(chat):
    code, out, err = chat("One?", options=("--regex", '\\{"a": (true|false)\\}', "-m", 40))
    assert code == 0, err
    assert list(json.loads(out)) == ["a"]
    assert "/a" in err


def test_commands(chat, tmp_path):
    folder = tmp_path / "traces"
    code, _, err = chat(
        "One?", "Two?", "/new", "Three?", "/quit", "never read", options=("--trace", folder)
    )
    assert code == 0, err
    asked = [read_trace(file).header.messages for file in sorted(folder.iterdir())]
    assert [len(messages) for messages in asked] == [1, 3, 1]
    assert asked[2][0]["content"] == "Three?"


def test_a_mistake_is_a_message_and_the_conversation_goes_on(chat):
    code, out, err = chat("x" * 300, "Hello?")
    assert (code, len(out) > 1) == (2, True)
    assert "shorten the message" in err


def test_every_answer_is_recorded(chat, tmp_path):
    folder = tmp_path / "traces"
    code, out, err = chat("One?", "Two?", options=("--trace", folder))
    assert code == 0, err
    traces = [read_trace(file) for file in sorted(folder.iterdir())]
    recorded = ["".join(step.text for step in trace.steps) for trace in traces]
    assert out == "".join(f"{text}\n" for text in recorded)
    assert [m["role"] for m in traces[1].header.messages] == ["user", "assistant", "user"]
    assert all(trace.totals["usage"]["completion_tokens"] == len(trace.steps) for trace in traces)
    chat("One?", options=("--trace", folder))
    assert [file.stem for file in sorted(folder.iterdir())] == ["001", "002", "003"]


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--trace", "cannot write to the folder"),
        ("--sampler", "no sampler"),
        ("--answers=2", "leave --answers out"),
    ],
)
def test_a_mistake_is_an_error_before_the_model_is_loaded(chat, tmp_path, option, named):
    (tmp_path / "file").touch()
    stated = (option,) if "=" in option else (option, tmp_path / "file")
    code, _, err = chat("One?", options=stated)
    assert code == 2
    assert named in err
    assert "loading" not in err


def test_a_full_context_is_reported(chat):
    code, _, err = chat(*(f"This is question number {n}, and it is long?" for n in range(8)))
    assert code == 0
    assert "the model no longer sees the first" in err


def test_the_full_screen_begins_with_the_options(entropix, monkeypatch, tiny_folder, tmp_path):
    asked = ("chat", "--model", tiny_folder, "--seed", 3, "--ask", "--no-think")
    code, _, err = entropix(*asked)
    assert (code, "--plain" in err) == (2, True), "there is no terminal"
    begun = []
    monkeypatch.setattr("entropix_mlx.tui.app.run_chat", lambda *given: begun.append(given) or 0)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    assert entropix(*asked, "--no-save", "--trace", tmp_path / "traces")[0] == 0
    ((chat, store, *_, ask),) = begun
    assert (chat.source.model, ask, chat.settings.seed, store) == (tiny_folder.name, True, 3, None)
    assert chat.settings.changes["think"] == {"max_insertions": 0}
    assert chat.settings.top_logprobs > 0
    assert (tmp_path / "traces").is_dir()
