"""Where there is no model: the offer on a terminal, and the error in a pipe."""

import io
import os
import pty
import subprocess
import sys

import pytest

from entropix_mlx.checkpoints.hub import DEMO_NAME
from tests.commands.conftest import Terminal


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """A machine without models and without a network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "no-index").as_uri())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def downloads(empty, monkeypatch, tiny_folder):
    """The demo model is a tiny one; returns how often it was downloaded."""
    asked = []

    def download(on_progress):
        asked.append(on_progress(1, 1))
        return tiny_folder

    monkeypatch.setattr("entropix_mlx.checkpoints.demo.download_demo_model", download)
    return asked


@pytest.mark.parametrize(
    "command", [["generate", "-p", "x"], ["chat", "--plain"], ["calibrate"], ["bench"]]
)
@pytest.mark.usefixtures("empty")
def test_in_a_pipe_the_command_is_named(entropix, command):
    code, out, err = entropix(*command)
    assert (code, out) == (2, "")
    assert "entropix models --download demo" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "code"), [("\n", 0), ("1\n", 0), ("99\nx\n1\n", 0), ("q\n", 2), ("", 2)]
)
def test_a_terminal_is_asked(entropix, downloads, monkeypatch, typed, code):
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr", Terminal())
    assert entropix("generate", "-p", "x", "-m", "3")[0] == code
    assert len(downloads) == (code == 0)


@pytest.mark.parametrize("arguments", [["--download", "no such"], ["--download", DEMO_NAME]])
@pytest.mark.usefixtures("empty")
def test_a_download_that_fails_is_a_sentence(entropix, arguments):
    code, out, err = entropix("models", *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("entropix: ")


@pytest.mark.slow
@pytest.mark.usefixtures("empty")
def test_chat_asks_before_it_opens_its_screen():
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "entropix_mlx", "chat"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    os.write(ours, b"q\n")
    while b"no model was chosen" not in shown:
        shown += os.read(ours, 1000)
    assert process.wait(60) == 2
    os.close(ours)
    assert b"demo" in shown
    assert b"\x1b[?1049h" not in shown  # the full screen


@pytest.fixture
def base_model(tiny_folder):
    """A model without a chat template."""
    (tiny_folder / "chat_template.jinja").unlink()
    return tiny_folder


def test_a_model_without_a_chat_template_continues_texts_and_says_so(
    entropix, base_model, tmp_path, monkeypatch
):
    for file in ("schema.json", "text.txt"):
        (tmp_path / file).write_text("{}")
    with_model = ("--model", base_model)
    for asked in (("generate", "-p", "x", "-m", 2), ("read", tmp_path / "text.txt")):
        code, _, err = entropix(*asked, *with_model)
        assert (code, "no chat template" in err) == (0, True)
    monkeypatch.setattr("sys.stdin", io.StringIO("x\n"))
    schema = ("--schema", tmp_path / "schema.json")
    for asked in (("chat", "--plain"), ("extract", tmp_path / "text.txt", *schema)):
        code, _, err = entropix(*asked, *with_model)
        assert (code, "entropix generate" in err) == (2, True)
