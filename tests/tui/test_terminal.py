"""A terminal that cannot show the app gets a sentence, not garbage; with one that goes, it ends."""

import fcntl
import io
import os
import pty
import random
import signal
import struct
import subprocess
import sys
import termios
import threading

import pytest

from entropix_mlx import cli
from entropix_mlx.errors import PromptError
from entropix_mlx.tui.terminal import require_full_screen
from tests.tui.test_walk import SEED, TIMES


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


def test_a_terminal_must_take_utf8(on_terminal):
    for encoding in ("utf-8", "UTF8"):
        on_terminal(encoding)
        require_full_screen("add --plain")
    on_terminal("latin-1")
    with pytest.raises(PromptError, match=r"latin-1.*LANG.*add --plain"):
        require_full_screen("add --plain")


@pytest.mark.parametrize(
    ("command", "encoding", "term", "instead"),
    [
        (["chat"], "utf-8", "dumb", "--plain"),
        (["chat"], "ascii", "xterm", "--plain"),
        (["view", "tests/data/readme.jsonl"], "utf-8", "dumb", "--html"),
    ],
)
def test_the_message_names_the_way_out(on_terminal, capsys, command, encoding, term, instead):
    on_terminal(encoding, term)
    assert cli.main(command) == 2
    message = capsys.readouterr().err
    assert instead in message
    assert message.count("\n") == 1


class DemoInTerminal:
    """`entropix chat --demo` in a terminal, as a process; a context manager."""

    def __enter__(self):
        self.ours, theirs = pty.openpty()
        self.resize(80, 24)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "entropix_mlx", "chat", "--demo"],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env=os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"},
        )
        os.close(theirs)
        shown = b""
        while b"Ask something" not in shown:  # Textual draws on standard error
            shown += os.read(self.process.stderr.fileno(), 65536)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def resize(self, width, height):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def rest(self):
        """Wait for the end, and return what was drawn until then."""
        return self.process.communicate(timeout=60)[1]


@pytest.mark.parametrize(
    "sent", [None, signal.SIGTERM, signal.SIGHUP], ids=["closed", "terminated", "hung up"]
)
def test_the_app_ends_with_its_terminal(sent):
    with DemoInTerminal() as app:
        for _ in range(3):
            app.process.send_signal(signal.SIGCONT)  # it comes with SIGHUP
        if sent is None:
            os.close(app.ours)
        else:
            app.process.send_signal(sent)
        rest = app.rest()
        assert app.process.returncode == 0
        assert b"\x1b[?1049l" in rest  # the screen that was there before is back
        assert b"Traceback" not in rest


TYPED = [
    *(b"\t", b"\x1b[Z", b"\r", b"\x1b[A", b"\x1b[B", b"\x1b[5~", b"\x1b[6~", b"\x1bOR", b"\x1bOS"),
    *(b"hi\r", b"?", b"/", b"\x0c", b"\x10", b"\x06", b"\x1b[<0;30;9M\x1b[<0;30;9m", b"\x12"),
    *(b"\x1b[19~", b"\x1b[20~", b"\x1b[21~", b"\x13", b"\x02", b"\x15", b"v", b"\x1b", b"\x0e1"),
    *(b"\x1b[<64;9;9M", b"\x1b[200~two\nlines \xf0\x9f\x91\xa9\x1b[201~", b"\xff\xfe", b"\x1b[99~"),
]


def test_a_random_walk_in_a_terminal_can_be_left(tmp_path, monkeypatch):
    source = random.Random(SEED)
    monkeypatch.chdir(tmp_path)
    with DemoInTerminal() as app:
        drawn = []
        reader = threading.Thread(target=lambda: drawn.append(app.rest()))
        reader.start()
        for _ in range(150 * TIMES):
            os.write(app.ours, source.choice(TYPED))
            if source.random() < 0.1:
                app.resize(source.randrange(2, 200), source.randrange(2, 60))
                app.process.send_signal(signal.SIGWINCH)
        os.write(app.ours, b"\x11")  # Ctrl+Q
        reader.join()
        assert app.process.returncode == 0
        assert b"Traceback" not in drawn[0]
