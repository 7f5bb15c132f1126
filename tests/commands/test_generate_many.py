"""`entropix generate --prompts` and `--n`, in process, on a tiny model."""

import json
from pathlib import Path

import pytest

from entropix_mlx import Settings, cli
from entropix_mlx.api.answers_file import AnswersFile, all_tasks
from entropix_mlx.api.batch_answer import BatchAnswer
from entropix_mlx.api.prompt_file import PromptLine
from entropix_mlx.commands.shared import answers as shown
from entropix_mlx.errors import OutputError


@pytest.fixture
def run(tiny_folder, capsys):
    def run(*arguments):
        try:
            given = map(str, arguments)
            code = cli.main(["generate", "--model", str(tiny_folder), *given])
        except SystemExit as stop:  # argparse's own refusals
            code = stop.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def prompts(tmp_path):
    """Five prompts, one of which asks for something of its own."""
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"{word}?", "id": word} for word in ("one", "two", "three", "four")]
    lines.append({"prompt": "five?", "sampler": "greedy", "max_tokens": 3})
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def records(path):
    text = path.read_text()
    assert text.endswith("\n") or not text
    return [json.loads(line) for line in text.splitlines()]


def answers(path):
    """Return what does not depend on when an answer ended."""
    found = {(r["line"], r["sample"]): (r["seed"], r["text"]) for r in records(path)}
    assert len(found) == len(records(path))
    return found


def test_every_line_is_answered(run, prompts, tmp_path):
    output = tmp_path / "answers.jsonl"
    code, out, err = run("--prompts", prompts, "-o", output, "-m", 8, "--seed", 3, "--batch", 2)
    assert (code, out) == (0, "")
    assert "2 answers at once" in err
    assert "5 answers, " in err
    found = {r["line"]: r for r in records(output)}
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert found[2]["id"] == "two"
    assert found[2]["prompt"] == "two?"
    assert {r["batch"] for r in found.values()} == {2}
    assert found[5]["sampler"] == "greedy"
    assert found[5]["usage"]["completion_tokens"] == 3
    _, alone, _ = run("-p", "two?", "-m", 8, "--seed", 3, "--json")
    assert found[2]["text"] == json.loads(alone)["text"]


def test_several_answers_to_one_prompt(run):
    code, out, _ = run("-p", "hello", "--n", 3, "-m", 6, "--seed", 5, "--json")
    found = {r["sample"]: r for r in map(json.loads, out.splitlines())}
    assert code == 0
    assert {sample: r["seed"] for sample, r in found.items()} == {0: 5, 1: 6, 2: 7}
    _, alone, _ = run("-p", "hello", "-m", 6, "--seed", 6, "--json")
    assert found[1]["text"] == json.loads(alone)["text"]
    _, out, _ = run("-p", "hello", "--n", 3, "-m", 6, "--seed", 5, "--verbose", "false")
    assert f"── answer 2, seed 6 ──\n{found[1]['text']}\n" in out


def test_a_run_that_was_stopped_goes_on(run, prompts, tmp_path, monkeypatch):
    whole, output = tmp_path / "whole.jsonl", tmp_path / "answers.jsonl"
    options = ("--prompts", prompts, "-m", 8, "--seed", 3, "--n", 2)
    assert run(*options, "-o", whole)[0] == 0
    write = AnswersFile.write

    def interrupted(self, task, record):
        write(self, task, record)
        if len(self.done) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(AnswersFile, "write", interrupted)
    code, _, err = run(*options, "-o", output)
    assert code == 130
    assert "--resume" in err
    assert len(records(output)) == 3
    monkeypatch.undo()
    with open(output, "a", encoding="utf-8") as file:
        file.write('{"line": 4, "sample": 0, "te')
    code, _, err = run(*options, "-o", output, "--resume")
    assert code == 0
    assert "3 answers there, 7 to go" in err
    assert answers(output) == answers(whole)
    before = output.read_bytes()
    assert run(*options, "-o", output, "--resume")[0] == 0
    assert output.read_bytes() == before


def test_an_answer_that_fails_is_tried_again(run, tmp_path):
    prompts, output = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text(f"short\n{'long ' * 60}\nlast\n")
    code, _, err = run("--prompts", prompts, "-o", output, "-m", 4)
    assert code == 2
    assert "line 2: the prompt has " in err
    assert [r["line"] for r in records(output) if "error" in r] == [2]
    prompts.write_text("short\nlonger\nlast\n")
    with_error = output.read_text()
    code, _, err = run("--prompts", prompts, "-o", output, "-m", 4, "--resume")
    assert code == 2, "line 2 is another prompt now"
    assert output.read_text() == with_error


def test_stop_strings(run):
    options = ("-p", "hello", "-m", 30, "--seed", 4, "--json")
    text = json.loads(run(*options)[1])["text"]
    stop = text[8:11]
    record = json.loads(run(*options, "--stop", "never in it", "--stop", stop)[1])
    assert record["text"] == text[: text.index(stop)]
    assert record["finish_reason"] == "stop"
    assert run(*options, "--stop", "")[0] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "x", "--resume"], "--resume is for"),
        (["-p", "x", "--batch", "3"], "--batch is for"),
        (["-p", "x", "--n", "2", "--resume"], "name it with --output"),
        (["-p", "x", "--n", "2", "--jsonl"], "--jsonl is for one answer"),
        (["-p", "x", "--n", "2", "--ask"], "--ask is for one answer"),
        (["-p", "x", "--n", "2", "--trace", "t"], "--trace is for one answer"),
        (["-p", "x", "--n", "0"], "positive"),
        (["--prompts", "none.txt"], "cannot read"),
        (["-p", "x", "--prompts", "y"], "not allowed with"),
        ([], "required"),
    ],
)
def test_options_that_do_not_fit(run, options, message):
    code, out, err = run(*options)
    assert (code, out) == (2, "")
    assert message in err


def test_a_mistake_in_the_file_leaves_no_output(run, tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b", "sed": 1}\n')
    code, _, err = run("--prompts", prompts, "-o", output)
    assert code == 2
    assert "line 2: unknown key 'sed'; did you mean seed?" in err
    assert not output.exists()
    prompts.write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    code, _, err = run("--prompts", prompts, "-o", output, "--ignore-chat-template")
    assert "line 1: messages and system prompts need the chat template" in err
    assert not output.exists()


def test_what_is_there_stays(run, tmp_path):
    output = tmp_path / "answers.jsonl"
    options = ("-p", "x", "--n", "2", "-o", output)
    for content, message in (
        ("", "exists already"),
        ("text\n", "line 1 is not an answer"),
        ('{"line": [], "sample": 0}\n', "line 1 is not an answer"),
        ('{"line": 1, "sample": 0, "prompt": "y"}\n', "answers none of these prompts"),
    ):
        output.write_text(content)
        code, _, err = run(*options, *(["--resume"] if content else []))
        assert code == 2
        assert message in err
        assert output.read_text() == content


def test_a_folder_or_a_full_disk_is_told(tmp_path):
    (task,) = all_tasks([PromptLine(1, Settings(seed=1), "x")], 1)
    with (
        pytest.raises(OutputError, match="cannot write"),
        AnswersFile(tmp_path / "a" / "b", [task]),
    ):
        pass
    full = AnswersFile(tmp_path / "answers", [task])
    full._path = Path("/dev/full")
    with full, pytest.raises(OutputError, match="disk is full"):
        full.write(task, task.record(BatchAnswer(0, 1), 1))
    assert full.missing == [task]


def test_the_bar_shows_answers_and_speed(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with shown.progress_bar(2) as bar:
        bar.token()
        bar.answer()
    err = capsys.readouterr().err
    assert "1/2 answers" in err
    assert "tokens/s" in err
    assert "left" in err
