"""Standard streams that are full, closed, or cannot spell what a model writes."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entropix_mlx.commands.shared import output
from tests.commands.conftest import Terminal


@pytest.fixture
def shell(tiny_folder, tmp_path):
    """Run the command in a shell, with redirections; return its exit code, stdout and stderr."""

    def run(arguments, redirections="", **variables):
        line = f"{sys.executable} -m entropix_mlx {arguments} {redirections}"
        done = subprocess.run(
            ["bash", "-c", line.replace("MODEL", str(tiny_folder))],
            capture_output=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(Path.cwd())} | variables,
            timeout=120,
            check=False,
        )
        assert b"Traceback" not in done.stderr
        assert b"Exception ignored" not in done.stderr
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


GENERATE = "generate --model MODEL -p x -m 3 --seed 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "redirection", "code", "named"),
    [
        ("--help", ">/dev/full", 2, "cannot write to stdout: the disk is full"),
        ("calibrate --show reference", ">&-", 2, "cannot write to stdout: it is closed"),
        ("models", ">/dev/full", 2, "cannot write to stdout"),
        (f"{GENERATE} --jsonl --quiet", ">/dev/full", 2, "cannot write to stdout"),
        ("generate --nonsense", "2>/dev/full", 2, ""),
        ("calibrate --show reference --show reference", "2>/dev/full", 0, ""),
        (GENERATE, "<&- 2>&-", 0, ""),
        ("generate --model MODEL -p -", "<&-", 2, "no stdin"),
        ("chat --model MODEL", "</dev/null", 2, "needs a terminal"),
        ("calibrate --show reference", "<&- 2>&-", 0, ""),
    ],
)
def test_streams_that_take_or_give_nothing(shell, command, redirection, code, named):
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("there is no device that is always full")
    ended, _, err = shell(command, redirection)
    assert ended == code
    assert named in err
    assert err.count("\n") == bool(named), "one sentence"


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
    ],
)
def test_a_stream_that_cannot_spell_an_answer_gets_other_characters(shell, tmp_path, variables):
    text = tmp_path / "text.txt"
    text.write_text("é日😀", "utf-8")
    code, out, _ = shell(f"read {text} --model MODEL", **variables)
    assert (code, "???" in out) == (0, True)
    code, out, _ = shell("calibrate --show reference", **variables)
    assert (code, out.isascii()) == (0, True)


@pytest.mark.parametrize(
    ("environment", "stream", "colour"),
    [
        ({}, Terminal(), True),
        ({}, io.StringIO(), False),
        ({"NO_COLOR": "1"}, Terminal(), False),
        ({"TERM": "dumb"}, Terminal(), False),
    ],
)
def test_automatic_colour(monkeypatch, environment, stream, colour):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    assert output.use_colour("auto", stream) is colour
    assert output.use_colour("always", stream)
    assert not output.use_colour("never", stream)


def test_json_on_a_stream_that_cannot_spell_it_is_ascii(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    monkeypatch.setattr(sys, "stdout", stream)
    output.write_json({"text": "é日😀\ud800"})
    assert json.loads(stream.buffer.getvalue()) == {"text": "é日😀\ud800"}


def test_a_deleted_folder_is_one_sentence(entropix, tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    code, _, err = entropix("calibrate", "--show", "reference")
    assert (code, err.count("\n")) == (2, 1)
    assert "folder" in err


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.02, 0.3])
def test_ctrl_c_while_importing_is_no_traceback(delay):
    """Before Python runs its first line of ours nothing can be done: that is waited for."""
    code = (
        "import entropix_mlx.__main__ as m, os; os.write(1, b'.'); import sys;"
        "sys.argv[1:] = ['generate', '--model', '/absent', '-p', 'x'] * 1; sys.exit(m.main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.read(1)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, 2), "it was stopped, or had ended"
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seed", "9" * 5000],
        ["--set", "x" * 100_000],
        ["--trace", "~" + "x" * 100_000],
        ["--nonsense" + "x" * 100_000],
        ["\x1b[31m" * 20_000],
    ],
)
def test_a_long_argument_is_not_echoed_whole(entropix, arguments):
    code, _, err = entropix("generate", "-p", "x", *arguments)
    assert code == 2
    assert len(err) < 4000
    assert "\x1b" not in err
