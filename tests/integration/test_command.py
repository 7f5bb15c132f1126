"""The real command on the demo model, as a shell would run it."""

import json
import signal
import subprocess
import sys

import pytest

from entropix_mlx import stream_generate

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("demo_file")]

GENERATE = [sys.executable, "-m", "entropix_mlx", "generate"]
# A prompt of a few tokens: most of the time would else go into reading the template's.
BARE = ("--ignore-chat-template", "-p")


def run(*arguments, **options):
    return subprocess.run(
        [*GENERATE, *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


def start(*arguments):
    return subprocess.Popen(
        [*GENERATE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what it puts into the background with interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def test_a_prompt_on_stdin_and_a_seed_that_repeats_across_processes(demo):
    options = ("-m", "8", "--seed", "7", "--ignore-chat-template")
    done = run("--prompt", "-", *options, input="Hello")
    here = stream_generate(*demo, demo[1].encode("Hello"), max_tokens=8, seed=7)
    assert done.returncode == 0, done.stderr
    assert "".join(step.text for step in here).strip() in done.stdout
    assert "\x1b" not in done.stdout
    assert "entropy" in done.stderr


def test_ctrl_c_ends_with_what_there_is():
    with start(*BARE, "Once upon a time", "-m", "-1", "--jsonl") as process:
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert all(json.loads(line) for line in [*lines, *rest.splitlines()])
    assert "interrupted" in errors
    assert "Traceback" not in errors


def test_a_broken_pipe_is_quiet():
    with start(*BARE, "Once upon a time", "-m", "-1", "--quiet") as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141
