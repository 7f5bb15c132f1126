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
from tests.traces.test_trace import HEADER
from tests.tui.conftest import make_step

pytestmark = pytest.mark.slow

HAS_FULL = Path("/dev/full").exists()
needs_full = pytest.mark.skipif(not HAS_FULL, reason="a device that is always full")


@pytest.fixture
def entropix(tiny_folder, tmp_path):
    """Run the command in a shell, with redirections; return its exit code and stderr."""

    def run(arguments, redirections="", cwd=None, **variables):
        line = f"{sys.executable} -m entropix_mlx {arguments} {redirections}"
        done = subprocess.run(
            ["bash", "-c", line.replace("MODEL", str(tiny_folder))],
            capture_output=True,
            cwd=cwd or tmp_path,
            env=os.environ | {"PYTHONPATH": str(Path.cwd())} | variables,
            timeout=120,
            check=False,
        )
        assert b"Traceback" not in done.stderr
        assert b"Exception ignored" not in done.stderr
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


@pytest.fixture
def trace(tmp_path):
    from entropix_mlx.traces.trace import recorded

    file = tmp_path / "trace.jsonl"
    list(recorded([make_step(0, "a")], file, HEADER))
    return file


GENERATE = "generate --model MODEL -p x -m 3 --seed 1"
PRINTING = ["--help", "profile show reference", "report"]


@pytest.mark.parametrize("command", PRINTING)
@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        pytest.param(">/dev/full", "the disk is full", marks=needs_full),
        (">&-", "it is closed"),
    ],
)
def test_stdout_that_takes_nothing_is_one_sentence(entropix, trace, command, redirection, message):
    command = f"report {trace}" if command == "report" else command
    code, _, err = entropix(command, redirection)
    assert code == 2
    assert f"entropix: cannot write to stdout: {message}" in err


def test_an_answer_that_cannot_be_printed_is_one_sentence(entropix):
    code, _, err = entropix(f"{GENERATE} --jsonl --verbose no", ">/dev/full" if HAS_FULL else ">&-")
    assert (code, err.count("\n")) == (2, 1)
    assert "entropix: cannot write to stdout" in err


def test_stderr_that_takes_nothing_changes_no_result(entropix):
    for redirection in ["2>&-", *(["2>/dev/full"] if HAS_FULL else [])]:
        assert entropix("profile check absent", redirection)[0] == 2
        assert entropix("generate --nonsense", redirection)[0] == 2
        assert entropix("profile diff reference reference", redirection)[0] == 0


def test_a_closed_stdin_is_no_fault_of_the_model(entropix):
    code, out, err = entropix(GENERATE, "<&- 2>&-")
    assert (code, bool(out)) == (0, True), err
    code, _, err = entropix("generate --model MODEL -p -", "<&-")
    assert code == 2
    assert "no stdin" in err


def test_the_terminal_ui_does_not_wait_where_there_is_no_terminal(entropix, trace):
    for command in (f"view {trace}", "chat --model MODEL"):
        code, out, err = entropix(command, "</dev/null")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "needs a terminal" in err


def test_all_streams_may_be_closed(entropix):
    assert entropix("profile show reference", "<&- >&- 2>&-")[0] == 2
    assert entropix("profile check reference", "<&- 2>&-")[0] == 0


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
    ],
)
def test_a_stream_that_cannot_spell_an_answer_gets_other_characters(entropix, trace, variables):
    lines = trace.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"text": "é日😀"})
    trace.write_text("\n".join(lines))
    code, out, _ = entropix(f"report {trace}", **variables)
    assert (code, "???" in out) == (0, True)
    code, out, _ = entropix("profile show reference", **variables)
    assert (code, out.isascii()) == (0, True)


def test_json_on_a_stream_that_cannot_spell_it_is_ascii(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    monkeypatch.setattr(sys, "stdout", stream)
    output.write_json({"text": "é日😀\ud800"})
    assert json.loads(stream.buffer.getvalue()) == {"text": "é日😀\ud800"}


def test_a_deleted_folder_is_one_sentence(entropix, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    line = f"""-c 'import os, sys; os.rmdir("{folder}"); sys.argv = ["", "profile", "check", "x"];
from entropix_mlx.__main__ import main; sys.exit(main())'"""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} {line}"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the current folder was deleted" in done.stderr


@pytest.mark.parametrize("delay", [0.02, 0.1, 0.3])
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
        ["--max-tokens", "9" * 5000],
        ["--top-logprobs", "9" * 5000],
        ["--branch-width", "9" * 5000],
        ["--top-k", "9" * 5000],
        ["--sampler", "x" * 100_000],
        ["--profile", "x" * 100_000],
        ["--set", "x" * 100_000],
        ["--model", "x" * 100_000],
        ["--trace", "~" + "x" * 100_000],
        ["--nonsense" + "x" * 100_000],
        ["\x1b[31m" * 20_000],
    ],
)
def test_a_long_argument_is_not_echoed_whole(arguments, capsys):
    from entropix_mlx import cli

    try:
        code = cli.main(["generate", "-p", "x", *arguments])
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2
    assert len(err) < 4000
    assert "\x1b" not in err
