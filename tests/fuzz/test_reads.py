"""What a user names, the environment states or a stranger sends: one sentence if it is wrong."""

import contextlib
import json
import os
import socket
import threading
from itertools import product

import pytest

from entropix_mlx.distributed.environment import ADDRESS, PATIENCE, of_environment
from entropix_mlx.distributed.hub import Hub, Spoke
from entropix_mlx.errors import GroupError
from entropix_mlx.profiles.confidence import SCORED
from tests.distributed.test_hub import HELLO, accept, places
from tests.fuzz.conftest import times
from tests.fuzz.mutations import LINES, NUMBERS, damaged_json

ABSENT = ["--model", "/absent/model"]
ANSWER = ["generate", "-p", "x", *ABSENT]
PATHS = [
    *([*ANSWER, f"--{name}"] for name in ("config", "trace", "profile", "notes", "adapter-path")),
    *([*ANSWER, f"--{name}"] for name in ("output", "prompt-cache-file", "draft-model")),
    [*ANSWER, "--resume", "--output"],
    ["generate", "-p", "x", "--model"],
    ["generate", *ABSENT, "--prompts"],
    ["compare", "-p", "x", "--sampler", "greedy", *ABSENT, "--trace"],
    *(["calibrate", *ABSENT, f"--{name}"] for name in ("prompts", "output", "abstain", "answers")),
    *(["eval", *ABSENT, f"--{name}"] for name in ("study", "read", "notes", "task", "output")),
    ["read", *ABSENT],
    ["read", *ABSENT, __file__, "--output"],
    ["serve", *ABSENT, "--api-key-file"],
    ["chat", "--plain", *ABSENT, "--config"],
    *(["report"], ["view"], ["profile", "check"], ["profile", "show"]),
    *(["convert", "--hf-path"], ["convert", "--hf-path", "/absent", "--mlx-path"]),
]  # fmt: skip
"""Command lines, each followed by a path that is read or written."""
KINDS = ("folder", "fifo", "socket", "loop", "huge", "binary", "nested", "unreadable")
NAMES = ("/dev/zero", "/dev/full", "/dev/tty", "absent", "absent/x", "~nobody-at-all/x", "x\0")
NAMES = (
    *NAMES,
    *KINDS,
    "huge/x",
    "x" * 300,
    "x/" * 3000,
    "\udcff",
    "-",
    "svamp=fifo",
    "gsm8k=huge",
)


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
    for command, name in random.sample(cases, min(len(cases), len(times(80)))):
        run(*command, name, input="x" * 100)


QUESTIONS = {
    "own.jsonl": {"question": "a?", "answer": ["b", 1], "rule": "exact", "id": 1, "level": "x"},
    "svamp=own.jsonl": {"ID": "1", "Body": "b", "Question": "q?", "Answer": 2.0, "Type": "Add"},
    "gsm8k=own.jsonl": {"question": "a?", "answer": "2 #### 3"},
}
RULES = ["number", "last", "exact", "choice", "regex", "contains", "final"]
PATTERNS = [
    "a{99999999999}",
    "(" * 500 + ")" * 500,
    "[",
    "(?P<a>)(?P<a>)",
    "9" * 400,
    "(a+)+b" * 300,
]


def test_questions(run, tmp_path, random):
    for _ in times(40):
        task = random.choice(list(QUESTIONS))
        record = QUESTIONS[task]
        if task == "own.jsonl" and random.random() < 0.5:
            answer = random.choice(PATTERNS)
            line = json.dumps(record | {"rule": random.choice(RULES), "answer": answer})
        else:
            line = damaged_json(record, random)
        (tmp_path / "own.jsonl").write_text(f"{line}\n")
        run("eval", *ABSENT, "--task", task, "--split", "all", what=line)


def test_answers_of_an_evaluation(run, tmp_path, random):
    question = {"id": "a/1", "task": "a", "level": "x", "split": "fit", "rule": "exact"}
    question |= {"arm": "greedy", "seed_number": 0, "form": "plain", "answers": ["b"]}
    tokens = {name: [-0.5, 1.5] for name in SCORED} | {"first": 0}
    graded = {"right": True, "committed": 2, "discarded": 0}
    record = {"question": question, "graded": graded, "text": "b", "tokens": tokens, "model": "m"}
    for _ in times(40):
        lines = [json.dumps(record), damaged_json(record, random), ""]
        (tmp_path / "own.jsonl").write_text("\n".join(lines))
        run("eval", "--read", "own.jsonl", "--vote", "2", "--confidence", what=lines[1])


def test_numbers_of_the_environment(tmp_path, random):
    file = tmp_path / "hosts.json"
    file.write_text('[["a:5001"], ["b:5002"]]')
    good = [
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", ADDRESS: "a:80"},
        {"PMI_RANK": "1", "PMI_SIZE": "2", ADDRESS: "a:80", PATIENCE: "2.5"},
        {"MLX_RANK": "1", "MLX_WORLD_SIZE": "2", "NCCL_HOST_IP": "a", "NCCL_PORT": "80"},
        {"MLX_RANK": "1", "MLX_HOSTFILE": str(file), PATIENCE: "3"},
    ]
    for given in good:
        assert of_environment(given).rank == 1
        for name, number in product(given, NUMBERS):
            with contextlib.suppress(GroupError):
                place = of_environment(given | {name: number})
                assert place is None or 0 <= place.rank < place.size < 1000, (name, number)
                assert place is None or 0 < place.address[1] < 2**16, (name, number)
    for number in (*NUMBERS, "[[]]", "[[1], 2]", "[[{}]]", "[" * 10**5, '[["a:x"], ["b:99999"]]'):
        file.write_text(number)
        with contextlib.suppress(GroupError):
            assert of_environment({"MLX_RANK": "0", "MLX_HOSTFILE": str(file)}) is None


def test_strangers_at_the_port_of_rank_0():
    first, second = places(2, patience=30.0)
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(contextlib.closing(Hub(first)))
        joining = threading.Thread(target=hub.join, args=(HELLO, accept))
        joining.start()
        for line in LINES:
            stranger = stack.enter_context(socket.create_connection(first.address))
            with contextlib.suppress(OSError):  # it was dropped before it had said everything
                stranger.sendall(line)
        rank = stack.enter_context(contextlib.closing(Spoke.join(second, HELLO)))
        assert rank.begin() == HELLO
        joining.join()
        with pytest.raises(GroupError, match="another --starting-port"):
            Hub(first)
        late = stack.enter_context(contextlib.closing(Spoke.join(second, HELLO)))
        assert late.begin() is None, "the port is kept, and nobody else taken"
