"""Traces, profiles and conversations that were damaged: a message or a true result, no more."""

import json
import random as randoms
from dataclasses import asdict, replace

import pytest

from entropix_mlx import Profile
from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.step import Alternative, Branch, ChosenBy, Fork, Origin, Strategy
from entropix_mlx.traces.trace import Header, TraceWriter
from tests.fuzz.conftest import times
from tests.fuzz.mutations import VALUES, damaged_bytes, damaged_json, toml_value
from tests.tui.conftest import make_step


def answer():
    """An answer with everything that a step may hold."""
    steps = [make_step(i, f"word{i} ", list(Strategy)[i % 7]) for i in range(8)]
    ways = tuple(Branch((1, 2), f"way {n}", -1.0 - n, 2.0, lead=0.5 * n) for n in range(3))
    steps[2] = replace(steps[2], origin=Origin.INSERTED, rolled_back=1)
    steps[4] = replace(steps[4], fork=Fork(ways, 1, ChosenBy.USER), origin=Origin.CHOSEN)
    steps[5] = replace(steps[5], top_logprobs=(Alternative(1, "a", -0.25),))
    steps[7] = replace(steps[7], finish_reason="stop")
    return steps


@pytest.fixture
def trace(tmp_path):
    """The lines of a trace."""
    file = tmp_path / "good.jsonl"
    message = [{"role": "user", "content": "Hi"}]
    with TraceWriter(file, Header("m", "entropix", Profile.load(), 1, message, 256, 2)) as writer:
        for step in answer():
            writer.add(step)
    return file.read_text().splitlines()


def check_report(run, faults, tmp_path, content, what):
    file = tmp_path / "trace.jsonl"
    file.write_bytes(content)
    for traces in ([file], [file, tmp_path / "good.jsonl"]):
        result = run("report", *traces, folder=tmp_path)
        faults(result, what)
        if result["code"] == 0:
            assert result["out"].rstrip().endswith("</html>"), what
    faults(run("view", file, folder=tmp_path), what, allowed=(2,))  # there is no terminal


def test_every_field_of_a_trace(run, faults, trace, tmp_path, random):
    for _ in times(100):
        lines = list(trace)
        number = random.choice((0, 1, 3, 5, 6, 8, 9))
        lines[number] = damaged_json(json.loads(lines[number]), random)
        content = "\n".join(lines).encode()
        check_report(run, faults, tmp_path, content, f"line {number + 1}: {lines[number]}")


def test_the_bytes_of_a_trace(run, faults, trace, tmp_path, random):
    for number in times(40):
        content = damaged_bytes("\n".join(trace).encode(), random)
        check_report(run, faults, tmp_path, content, f"case {number}: {content!r}")


def test_every_field_of_a_profile(run, faults, tmp_path, random):
    file = tmp_path / "profile.toml"
    sections = {k: v for k, v in asdict(Profile.load()).items() if isinstance(v, dict) and v}
    for _ in times(100):
        section = random.choice([*sections, "calibration", "x"])
        name = random.choice([*sections.get(section, {"x": 1}), "x"])
        text = f"[{section}]\n{name} = {toml_value(random.choice(VALUES))}\n"
        if random.random() < 0.2:
            text = f"{random.choice((section, 'name', 'extends'))} = " + text.split(" = ", 1)[1]
        file.write_text(text, encoding="utf-8", errors="replace")
        for arguments in (["check", file], ["diff", file, "reference"], ["show", file]):
            faults(run("profile", *arguments, folder=tmp_path), f"{arguments[0]}: {text}")


def test_the_bytes_of_a_profile(run, faults, tmp_path, random):
    from importlib import resources

    text = (resources.files("entropix_mlx.profiles") / "reference.toml").read_bytes()
    file = tmp_path / "profile.toml"
    for number in times(40):
        file.write_bytes(damaged_bytes(text, random))
        faults(run("profile", "check", file, folder=tmp_path), f"case {number}")


def test_a_saved_conversation(run, faults, tiny_folder, tmp_path, random):
    conversation = Conversation("Be kind", [Turn("Hi", [Reply(1, answer()), Reply(2, answer())])])
    conversation.save(tmp_path / "good.json")
    good = (tmp_path / "good.json").read_bytes()
    file = tmp_path / "chat.json"
    commands = f"/load {file}\n/steps\n/select 2\n/save {tmp_path / 'again.json'}\n/quit\n"
    arguments = ["chat", "--plain", "--model", tiny_folder, "--verbose", "no", "-m", "2"]
    for number in times(6):
        fields = damaged_json(json.loads(good), random).encode()
        file.write_bytes(fields if number % 3 else damaged_bytes(good, random))
        result = run(*arguments, folder=tmp_path, input=commands)
        faults(result, f"case {number}: {file.read_bytes()[:200]!r}")


@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "absent", "empty"])
def test_what_is_no_file(run, faults, tmp_path, kind):
    import os

    path = {"device": "/dev/zero"}.get(kind, tmp_path / "path")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()
    commands = [
        ["report", path],
        ["view", path],
        ["generate", "-p", "x", "--model", path],
        ["convert", "--hf-path", path, "--mlx-path", tmp_path / "out"],
    ]
    if kind != "empty":  # an empty profile is `reference`
        commands += [
            ["profile", "check", path],
            ["profile", "show", path],
            ["generate", "-p", "x", "--profile", path],
        ]
    for arguments in commands:
        faults(run(*arguments, folder=tmp_path), f"{arguments}", allowed=(2,))


def test_the_seed_decides():
    first, second = (damaged_bytes(b"x" * 100, randoms.Random("seed")) for _ in range(2))
    assert first == second
