"""What a user names: one sentence if it is wrong."""

import contextlib
import json
import os
import socket
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from entropix_mlx.profiles.confidence import SCORED
from tests.fuzz.conftest import ABSENT, OPTIONS, spelled, times, without_model
from tests.fuzz.mutations import damaged_json

KINDS = ("folder", "fifo", "socket", "loop", "huge", "binary", "nested", "unreadable")
NAMES = (
    *("/dev/zero", "/dev/full", "/dev/tty", "absent", "absent/x", "~nobody-at-all/x", "x\0"),
    *KINDS,
    *("huge/x", "x" * 300, "x/" * 3000, "\udcff", "-"),
)
NAMING = ("--model", "--profile", "--abstain", "--task", "--show", "FILE", "FILES")
"""What names a file without being described as a path."""
PATHS = [
    [*without_model(command), *spelled(option)]
    for command, options in OPTIONS.items()
    for option in options
    if option.names[0] in NAMING or Path in (option.hint, *get_args(option.hint))
]
"""Command lines, each to be followed by a path that is read or written."""


@pytest.fixture
def named(tmp_path):
    """Files that nobody should read to their end, in the folder of the commands."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "nested").write_text("[" * 100_000)
    (tmp_path / "unreadable").touch(0)
    with socket.socket(socket.AF_UNIX) as server, open(tmp_path / "huge", "wb") as huge:
        huge.truncate(3 * 10**9)
        with contextlib.chdir(tmp_path):
            server.bind("socket")
        yield


def test_every_path_of_a_command(run, named, random):
    cases = list(product(PATHS, NAMES))
    for command, name in random.sample(cases, min(len(cases), len(times(160)))):
        prompt = (
            ["--prompt", "x"] if command[0] == "generate" and "--prompts" not in command else []
        )
        run(*command, name, *prompt, input="x" * 100)


QUESTION = {"question": "a?", "answer": ["b", 1], "rule": "exact", "id": 1, "level": "x"}
RULES = ["number", "last", "exact", "choice", "contains", "regex"]
ANSWERS = ["(" * 500 + ")" * 500, "[", "9" * 400, "(a+)+b" * 300, "", "!"]


def test_questions(run, tmp_path, random):
    for _ in times(40):
        line = damaged_json(QUESTION, random)
        if random.random() < 0.3:
            stated = {"rule": random.choice(RULES), "answer": random.choice(ANSWERS)}
            line = json.dumps(QUESTION | stated)
        (tmp_path / "own.jsonl").write_text(f"{line}\n")
        run("eval", *ABSENT, "--task", "own.jsonl", what=line)


def test_answers_of_an_evaluation(run, tmp_path, random):
    tokens = {name: [-0.5, 1.5] for name in SCORED}
    record = {"question": "a/1", "task": "a", "level": "x", "arm": "greedy", "form": "plain"}
    record |= {"right": True, "committed": 2, "discarded": 0, "tokens": tokens, "model": "m"}
    for _ in times(40):
        lines = [json.dumps(record), damaged_json(record, random), ""]
        (tmp_path / "own.jsonl").write_text("\n".join(lines))
        run("eval", "own.jsonl", what=lines[1])
