"""Traces, profiles and conversations that were damaged: a message or a true result, no more."""

import json
from dataclasses import replace

import pytest

from entropix_mlx import Profile
from entropix_mlx.step import Alternative, Branch, ChosenBy, Fork, Origin, Strategy
from entropix_mlx.traces.trace import Header, TraceWriter
from tests.fuzz.conftest import times
from tests.fuzz.mutations import VALUES, damaged_bytes, damaged_json
from tests.steps import make_step


def answer():
    """An answer with everything that a step may hold."""
    steps = [make_step(i, f"word{i} ", list(Strategy)[i % 7]) for i in range(8)]
    branches = tuple(Branch((1, 2), f"branch {n}", -1.0 - n, 2.0, lead=0.5 * n) for n in range(3))
    steps[2] = replace(steps[2], origin=Origin.INSERTED, rolled_back=1)
    steps[4] = replace(steps[4], fork=Fork(branches, 1, ChosenBy.USER), origin=Origin.CHOSEN)
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


def test_a_trace(run, trace, tmp_path, random):
    file = tmp_path / "trace.jsonl"
    for number in times(70):
        lines = list(trace)
        if number % 7 < 5:
            line = random.choice((0, 1, 3, 5, 6, 8, 9))
            lines[line] = damaged_json(json.loads(lines[line]), random)
            content = "\n".join(lines).encode()
        else:
            content = damaged_bytes("\n".join(lines).encode(), random)
        file.write_bytes(content)
        page = tmp_path / "page.html"
        result = run("view", file, "--html", page, what=f"{content!r}")
        if result["code"] == 0:
            assert page.read_text().rstrip().endswith("</html>"), content
        run("view", file, what=f"{content!r}", allowed=(2,))  # there is no terminal


def test_every_field_of_a_profile(run, tmp_path, random):
    file = tmp_path / "profile.toml"
    sections = {k: v for k, v in Profile.load().model_dump().items() if isinstance(v, dict) and v}
    for _ in times(100):
        section = random.choice([*sections, "calibration", "x"])
        name = random.choice([*sections.get(section, {"x": 1}), "x"])
        value = random.choice(VALUES)
        value = value if isinstance(value, float) else json.dumps(value)
        text = f"[{section}]\n{name} = {value}\n"
        if random.random() < 0.2:
            text = f"{random.choice((section, 'name', 'extends'))} = " + text.split(" = ", 1)[1]
        file.write_text(text, encoding="utf-8", errors="replace")
        run("calibrate", "--show", file, what=text)
        run("calibrate", "--show", file, "--show", "reference", what=text)


def test_the_bytes_of_a_profile(run, tmp_path, random):
    from importlib import resources

    text = (resources.files("entropix_mlx.profiles") / "reference.toml").read_bytes()
    file = tmp_path / "profile.toml"
    for _ in times(40):
        content = damaged_bytes(text, random)
        file.write_bytes(content)
        run("calibrate", "--show", file, what=f"{content!r}")
