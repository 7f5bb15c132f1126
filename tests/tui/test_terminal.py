"""A terminal that cannot show the app gets a sentence, not garbage; with one that goes, it ends."""

import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios

import pytest

from entropix_mlx import cli
from entropix_mlx.errors import PromptError
from tui.terminal import require_full_screen


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding):
        super().__init__(io.BytesIO(), encoding)

    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    def make(encoding="utf-8", term="xterm-256color"):
        monkeypatch.setenv("TERM", term)
        monkeypatch.setattr("sys.stdin", Terminal(encoding))
        monkeypatch.setattr("sys.stdout", Terminal(encoding))

    return make


def test_an_ordinary_terminal_is_taken(on_terminal):
    on_terminal()
    require_full_screen("add --plain")
    on_terminal("UTF8")
    require_full_screen("add --plain")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_another_encoding_is_named(on_terminal, encoding):
    on_terminal(encoding)
    with pytest.raises(PromptError, match=f"{encoding}.*LANG.*add --plain"):
        require_full_screen("add --plain")


@pytest.mark.parametrize(
    ("command", "encoding", "term", "instead"),
    [
        (["chat"], "utf-8", "dumb", "--plain"),
        (["chat"], "ascii", "xterm", "--plain"),
        (["view", "trace.jsonl"], "utf-8", "dumb", "entropix report"),
    ],
)
def test_the_message_names_the_way_out(on_terminal, capsys, command, encoding, term, instead):
    on_terminal(encoding, term)
    assert cli.main(command) == 2
    message = capsys.readouterr().err
    assert instead in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("sent", [None, signal.SIGTERM], ids=["closed", "terminated"])
def test_the_app_ends_with_its_terminal(sent):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    app = subprocess.Popen(
        [sys.executable, "-m", "entropix_mlx", "chat", "--demo"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"},
    )
    os.close(theirs)
    shown = b""
    while b"Ask something" not in shown:  # Textual draws on standard error
        shown += os.read(app.stderr.fileno(), 65536)
    if sent is None:
        os.close(ours)
    else:
        app.send_signal(sent)
    rest = app.communicate(timeout=30)[1]
    assert app.returncode == 0
    assert b"\x1b[?1049l" in rest  # the screen that was there before is back
    assert b"Traceback" not in rest
    if sent is not None:
        os.close(ours)
