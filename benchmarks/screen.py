"""What the terminal UI costs: processor time, bytes to the terminal, and how soon a key is echoed.

    python benchmarks/screen.py [--sizes 120x40 200x60] [--keys 60]

The chat runs in a pseudoterminal and plays its own recording (`--demo`), so no model's time is in
the figures. Processor time and bytes are those of an answer, divided by its tokens, less what the
same time costs without an answer. A key is a letter that is typed into the field while an answer
grows; its echo is the first output that follows it and contains the letter.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

from entropix_mlx.chat.recorded import demo_recording
from entropix_mlx.palette import QUESTIONS

START_SECONDS = 60.0
QUESTION = 2
"""The third question of the card has the longest answer."""
LETTER = b"\xc3\xb8"  # one that stands nowhere else on the screen


class Screen:
    """`entropix chat --demo` in a pseudoterminal."""

    def __init__(self, columns: int, lines: int) -> None:
        self._terminal, theirs = pty.openpty()
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "entropix_mlx", "chat", "--demo"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ
            | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "COLORTERM": "truecolor"},
        )
        os.close(theirs)
        self.drawn = 0
        """Bytes that were written to the terminal."""

    def __enter__(self) -> Self:
        if not self.wait_for(b"Ask something", START_SECONDS):
            raise SystemExit("the chat did not start")
        self.rest(2.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def read(self, seconds: float) -> bytes:
        """Return what is drawn next; empty after so many seconds without anything."""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return b""
        found = os.read(self._terminal, 1 << 16)
        self.drawn += len(found)
        return found

    def rest(self, seconds: float) -> None:
        """Read for some seconds, whatever is drawn."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)

    def wait_for(self, text: bytes, seconds: float) -> float | None:
        """Return the seconds until a text is drawn; None if it is not."""
        began, shown = time.monotonic(), b""
        while (passed := time.monotonic() - began) < seconds:
            shown = shown[-200:] + self.read(seconds - passed)
            if text in shown:
                return time.monotonic() - began
        return None

    @property
    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(columns: int, lines: int, keys: int) -> str:
    """Return a row of the table."""
    answer = demo_recording().conversation.turns[QUESTION].answers[0]
    seconds, tokens = answer.steps[-1].time + 2.0, len(answer.steps)
    with Screen(columns, lines) as screen:
        idle = screen.processor_seconds
        screen.rest(seconds)
        idle = screen.processor_seconds - idle
        screen.type(QUESTIONS[QUESTION].encode())
        screen.rest(2.0)
        busy, drawn = screen.processor_seconds, screen.drawn
        screen.type(b"\r")
        screen.rest(seconds)
        busy, drawn = screen.processor_seconds - busy, screen.drawn - drawn
        echoes: list[float] = []
        while len(echoes) < keys:
            screen.type(b"\x12")  # Ctrl+R: another answer
            end = time.monotonic() + seconds - 3.0
            screen.rest(1.0)
            while time.monotonic() < end and len(echoes) < keys:
                screen.type(LETTER)
                echo = screen.wait_for(LETTER, 5.0)
                echoes.append(5.0 if echo is None else echo)
                screen.type(b"\x7f")
                screen.rest(0.1)
            screen.rest(3.0)
    p95 = statistics.quantiles(echoes, n=20)[-1]
    milliseconds = (busy - idle) / tokens * 1000
    return (
        f"{columns}x{lines}  {milliseconds:5.1f} ms/token  {drawn / tokens / 1000:5.1f} kB/token  "
        f"echo p50 {statistics.median(echoes) * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["120x40", "200x60"])
    parser.add_argument("--keys", type=int, default=60)
    given = parser.parse_args()
    for size in given.sizes:
        columns, _, lines = size.partition("x")
        print(measure(int(columns), int(lines), given.keys), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
