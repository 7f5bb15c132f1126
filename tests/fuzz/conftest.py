"""What the fuzz tests share: the server, the seed, and the verdict on a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from random import Random

import pytest

from docs.generate import arguments_of
from entropix_mlx import cli
from tests.fuzz import server as program

CASES = float(os.environ.get("FUZZ_TIMES", "0.1"))
"""The share of the cases that a test names which `make test` runs; `make fuzz` runs many more."""
COMMIT = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
SEED = os.environ.get("FUZZ_SEED", COMMIT.stdout.strip())
"""Each commit tries cases of its own."""
MOST_BYTES = 1.5 * 2**30
ABSENT = ("--model", "/absent/model")
OPTIONS = {name: arguments_of(name) for name in cli.COMMANDS}
"""What each command takes, as the command line describes it."""


@pytest.fixture(scope="session")
def server():
    """A process that runs command lines, each in a limited fork of its own."""
    if sys.platform == "darwin":
        pytest.skip("a fork of a process that has loaded Metal cannot use it")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
    )
    yield process
    process.communicate()


@pytest.fixture
def random(request):
    """A generator of its own for each test, so that one that is added changes no other."""
    return Random(f"{request.node.name} {SEED}")


def without_model(command):
    """Return a command with a model that does not exist, if it loads one."""
    has_model = any("--model" in option.names for option in OPTIONS[command])
    return [command, *(ABSENT if has_model else ())]


def spelled(option):
    """Return how a command line introduces the value of an option; nothing for an argument."""
    return [name for name in option.names[:1] if name.startswith("-")]


def times(cases):
    """Return the numbers of the cases to run, where a test names so many."""
    return range(max(1, round(cases * CASES)))


def fault(result, allowed=(0, 2)):
    """Return what is wrong with how a command ended; None if nothing is."""
    code, err = result["code"], result["err"]
    last = (err.rstrip("\n").rsplit("\n", 1) or [""])[-1]
    kinds = {
        "a traceback": "Traceback" in err or "Exception ignored" in err,
        f"signal {-code}": code < 0,
        f"exit code {code}": code not in allowed,
        f"{result['seconds']:.1f} s of CPU time": result["seconds"] > program.CPU_SECONDS,
        f"{result['bytes'] / 2**30:.1f} GB of memory": result["bytes"] > MOST_BYTES,
        "no sentence that says what is wrong": code == 2 and not last.startswith("entropix"),
        "control characters on stderr": "\x1b" in err or "\x9b" in err,
    }
    return next((kind for kind, is_so in kinds.items() if is_so), None)


@pytest.fixture
def run(server, tmp_path):
    """Run command lines in `tmp_path`; the test fails with all faults that were found."""
    found = []

    def run(*arguments, what="", allowed=(0, 2), input=""):
        case = {"arguments": list(map(str, arguments)), "input": input, "folder": str(tmp_path)}
        server.stdin.write(json.dumps(case) + "\n")
        server.stdin.flush()
        result = json.loads(server.stdout.readline())
        if wrong := fault(result, allowed):
            found.append(f"{wrong}: {arguments} {what:.300}\n{result['err'][-1500:]}")
        return result

    yield run
    assert not found, f"{len(found)} cases\n\n" + "\n\n".join(found[:20])
