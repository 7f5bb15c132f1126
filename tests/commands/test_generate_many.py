"""`entropix generate --prompts` and `--n`, in process, on a tiny model."""

import json

import pytest

from entropix_mlx import Settings
from entropix_mlx.api.answers_file import AnswersFile, all_tasks
from entropix_mlx.api.batch import BatchAnswer
from entropix_mlx.api.prompt_file import PromptLine
from entropix_mlx.errors import OutputError


@pytest.fixture
def prompts(tmp_path):
    """Five prompts, one of which has options of its own."""
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


def test_every_line_is_answered(generate, prompts, tmp_path):
    file = tmp_path / "answers.jsonl"
    code, out, err = generate("--prompts", prompts, "-o", file, "-m", 8, "--seed", 3, "--batch", 2)
    assert (code, out) == (0, "")
    assert "2 answers at once" in err
    assert "5 answers, " in err
    found = {r["line"]: r for r in records(file)}
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert (found[2]["id"], found[2]["prompt"], found[2]["batch"]) == ("two", "two?", 2)
    assert (found[5]["sampler"], found[5]["usage"]["completion_tokens"]) == ("greedy", 3)
    _, alone, _ = generate("-p", "two?", "-m", 8, "--seed", 3, "--json")
    assert found[2]["text"] == json.loads(alone)["text"]


def test_several_answers_to_one_prompt(generate):
    asked = ("-p", "hello", "--n", 3, "-m", 6, "--seed", 5)
    code, out, _ = generate(*asked, "--json")
    found = {r["sample"]: r for r in map(json.loads, out.splitlines())}
    assert code == 0
    assert {sample: r["seed"] for sample, r in found.items()} == {0: 5, 1: 6, 2: 7}
    _, alone, _ = generate("-p", "hello", "-m", 6, "--seed", 6, "--json")
    assert found[1]["text"] == json.loads(alone)["text"]
    _, out, err = generate(*asked, "--quiet")
    assert f"── answer 2, seed 6 ──\n{found[1]['text']}\n" in out
    assert err == ""


def test_a_run_that_was_stopped_goes_on(generate, prompts, tmp_path, monkeypatch):
    whole, file = tmp_path / "whole.jsonl", tmp_path / "answers.jsonl"
    options = ("--prompts", prompts, "-m", 8, "--seed", 3, "--n", 2)
    assert generate(*options, "-o", whole)[0] == 0
    write = AnswersFile.write

    def interrupted(self, task, record):
        write(self, task, record)
        if len(self.done) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(AnswersFile, "write", interrupted)
    code, _, err = generate(*options, "-o", file)
    assert (code, "--resume" in err) == (130, True)
    assert len(records(file)) == 3
    monkeypatch.undo()
    file.write_text(file.read_text() + '{"line": 4, "sample": 0, "te')
    code, _, err = generate(*options, "-o", file, "--resume")
    assert (code, "7 to go" in err) == (0, True)
    assert answers(file) == answers(whole)
    before = file.read_bytes()
    assert generate(*options, "-o", file, "--resume")[0] == 0
    assert file.read_bytes() == before


def test_an_answer_that_fails_is_tried_again(generate, tmp_path):
    prompts, file = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    prompts.write_text(f"short\n{'long ' * 60}\nlast\n")
    code, _, err = generate("--prompts", prompts, "-o", file, "-m", 4)
    assert (code, "line 2: the prompt has " in err) == (2, True)
    assert [r["line"] for r in records(file) if "error" in r] == [2]
    before = file.read_text()
    prompts.write_text("short\nlonger\nlast\n")
    assert generate("--prompts", prompts, "-o", file, "-m", 4, "--resume")[0] == 2, "another prompt"
    assert file.read_text() == before


def test_a_mistake_in_the_prompts_leaves_no_output(generate, tmp_path):
    prompts, file = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    asked = ("--prompts", prompts, "-o", file)
    assert generate(*asked)[0] == 2, "there is no such file"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b", "sed": 1}\n')
    assert "line 2: unknown key 'sed'; did you mean seed?" in generate(*asked)[2]
    prompts.write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    assert "line 1: " in generate(*asked, "--ignore-chat-template")[2]
    assert not file.exists()


@pytest.mark.parametrize(
    "content",
    ["", "text\n", '{"line": [], "sample": 0}\n', '{"line": 1, "sample": 0, "prompt": "y"}\n'],
)
def test_a_file_of_something_else_stays(generate, tmp_path, content):
    file = tmp_path / "answers.jsonl"
    file.write_text(content)
    assert generate("-p", "x", "--n", "2", "-o", file, *(["--resume"] if content else []))[0] == 2
    assert file.read_text() == content


def test_a_folder_or_a_full_disk_is_an_error(tmp_path):
    (task,) = all_tasks([PromptLine(1, Settings(seed=1), "x")], 1)
    with pytest.raises(OutputError), AnswersFile(tmp_path / "a" / "b", [task]):
        pass
    full = AnswersFile(tmp_path / "answers", [task])
    (tmp_path / "answers").symlink_to("/dev/full")
    with full, pytest.raises(OutputError, match="full"):
        full.write(task, task.record(BatchAnswer(0, 1), 1))
    assert not full.done
