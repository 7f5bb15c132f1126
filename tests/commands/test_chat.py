"""`entropix chat` on a tiny model: with --plain, lines in, answers out."""

import io
import json

import pytest

from entropix_mlx.palette import printable
from entropix_mlx.traces.trace import read_trace
from tests.commands.conftest import Terminal


@pytest.fixture
def chat(entropix, tiny_folder, monkeypatch):
    def chat(*lines, options=()):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
        asked = ("--plain", "--model", tiny_folder, "-m", 6, "--seed", 1)
        return entropix("chat", *asked, *options)

    return chat


def answers(file):
    turns = json.loads(file.read_text())["turns"]
    return [[answer["text"] for answer in turn["answers"]] for turn in turns]


def test_a_line_is_a_question(chat, tmp_path):
    file = tmp_path / "talk.json"
    code, out, err = chat("One?", "", "Two?", f"/save {file}")
    assert code == 0
    assert len(answers(file)) == 2
    assert out == "".join(f"{text}\n" for (text,) in answers(file))
    assert "tokens/s" in err
    assert "\x1b" not in out + err


@pytest.mark.parametrize("terminal", [False, True])
def test_of_several_answers_the_one_that_stays_in_the_chat_is_shown(
    chat, tmp_path, monkeypatch, terminal
):
    screen = Terminal()
    if terminal:
        monkeypatch.setattr("sys.stdout", screen)
    for seed in range(2, 8):  # until another than the first is chosen
        file = tmp_path / f"{seed}.json"
        options = ("--answers", 3, "--seed", seed, "--color", "never")
        code, out, err = chat("One?", f"/save {file}", options=options)
        assert code == 0, err
        assert "confidence" in err
        (turn,) = json.loads(file.read_text())["turns"]
        selected = turn["answers"][turn["selected"]]["text"]
        written = screen.getvalue() if terminal else out
        assert written.endswith(f"{printable(selected)}\n" if terminal else f"{selected}\n")
        if not terminal:
            assert out == f"{selected}\n"
        if turn["selected"]:
            return
    raise AssertionError("the first answer was chosen of all")


def test_fields_of_a_structured_answer_are_listed(chat):
    code, out, err = chat("One?", options=("--regex", '\\{"a": (true|false)\\}', "-m", 40))
    assert code == 0, err
    assert list(json.loads(out)) == ["a"]
    assert "/a" in err


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
    assert all(part in err for part in ("/regenerate", "1 choice"))
    assert out.count(answers(file)[0][0]) == 2, "/select shows the answer it takes"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("/regenerate", "nothing was asked"),
        ("/fork one 2", "'one'"),
        ("/fork 2", "/fork STEP TOKEN"),
        ("/select", "''"),
        ("/select " + "9" * 5000, "is not a number"),
        ("/nonsense", "/nonsense"),
        ("/save", "file"),
        ("/load /absent/file", "cannot read"),
        ("/save ~nobody-at-all/file", "~nobody-at-all/file"),
        ("x" * 300, "shorten the message"),
    ],
)
def test_a_mistake_is_a_message_and_the_conversation_goes_on(chat, line, named):
    code, out, err = chat(line, "Hello?")
    assert (code, len(out) > 1) == (2, True)
    assert named in err


def test_a_terminal_does_not_obey_an_answer(chat, monkeypatch, byte_tokenizer):
    (escape,) = byte_tokenizer.encode("\x1b", add_special_tokens=False)
    lines = ("One?", f"/fork 2 {escape}", "/select 2")
    assert chat(*lines)[1].count("\x1b") == 2, "in a pipe or a file as it is"
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    chat(*lines, options=("--color", "never"))
    assert (screen.getvalue().count("␛"), screen.getvalue().count("\x1b")) == (2, 0)


def test_steps_list_the_tokens_of_a_fork(chat):
    code, out, _ = chat("One?", "/steps", "/fork 2 66")
    listed = [line.split(maxsplit=2) for line in out.splitlines() if line.startswith("   ")]
    assert [int(line[0]) for line in listed] == list(range(1, len(listed) + 1))
    assert len(listed) > 2
    assert "%" in listed[0][2]
    assert code == 0


def test_every_answer_is_recorded(chat, tmp_path):
    talk, folder = tmp_path / "talk.json", tmp_path / "traces"
    lines = ("One?", "/fork 3 66", "/system Be brief.", "Two?", f"/save {talk}")
    code, _, err = chat(*lines, options=("--trace", folder))
    assert code == 0, err
    first, forked, second = traces = [read_trace(file) for file in sorted(folder.iterdir())]
    recorded = ["".join(step.text for step in trace.steps) for trace in traces]
    assert recorded == [text for turn in answers(talk) for text in turn]
    assert forked.steps[:2] == first.steps[:2]
    assert forked.header.prompt_tokens == first.header.prompt_tokens
    assert [m["role"] for m in second.header.messages] == ["system", "user", "assistant", "user"]
    assert all(trace.totals["usage"]["completion_tokens"] == len(trace.steps) for trace in traces)
    chat("One?", options=("--trace", folder))
    assert [file.stem for file in sorted(folder.iterdir())] == ["001", "002", "003", "004"]


@pytest.mark.parametrize(
    ("option", "named"), [("--trace", "cannot write to the folder"), ("--sampler", "no sampler")]
)
def test_a_mistake_is_an_error_before_the_model_is_loaded(chat, tmp_path, option, named):
    (tmp_path / "file").touch()
    code, _, err = chat("One?", options=(option, tmp_path / "file"))
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
    ((chat, store, _),) = begun
    assert (chat.model, chat.ask, chat.settings.seed, store) == (tiny_folder.name, True, 3, None)
    assert chat.settings.changes["think"] == {"max_insertions": 0}
    assert chat.settings.top_logprobs > 0
    assert (tmp_path / "traces").is_dir()
