"""Guarding a call of MLX during which nothing else of Python runs, by a process of its own.

While MLX connects the ranks to one another it lets no other thread of Python run, and it waits for
ever for a rank that is lost. So this module is also a program: it watches the connections of the
rank that started it, and ends that rank. It imports only what every Python has, since it is run by
``python -I -S``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

PAUSE_SECONDS = 0.1
"""Between two checks of a connection whose data is for the rank to read."""


@contextlib.contextmanager
def guarded(lines: Mapping[int, str], stderr: int, code: int) -> Iterator[None]:
    """End this process, from outside, where a connection ends.

    Args:
        lines: a message for each connection's descriptor, printed where it ends unless empty.
        stderr: the descriptor to print it to.
        code: the exit code for the other sides.
    """
    given = {"parent": os.getpid(), "code": code, "stderr": stderr, "lines": list(lines.items())}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, json.dumps(given)],
        stdin=subprocess.PIPE,
        pass_fds=[*lines, stderr],
    ):
        yield  # leaving closes the sentinel's stdin, and waits for it


def main() -> None:
    """Watch until stdin ends: then the rank is connected, or gone.

    The one argument is JSON: ``parent``, the process, and the arguments of `guarded`.
    """
    given = json.loads(sys.argv[1])
    lines = {socket.socket(fileno=descriptor): lost for descriptor, lost in given["lines"]}
    while True:
        watched: list[Any] = [0, *lines]
        ready, _, _ = select.select(watched, [], [])
        if 0 in ready:
            return
        for line, lost in lines.items():
            message = _ending(line, lost) if line in ready else None
            if message is not None:
                _end(given, list(lines), message)
                return
        select.select([0], [], [], PAUSE_SECONDS)


def _ending(line: socket.socket, lost: str) -> str | None:
    """Return the message where the other side is gone, or ends this one; else None."""
    try:
        said = line.recv(2**16, socket.MSG_PEEK)
    except OSError:
        said = b""
    if not said:
        return lost
    try:
        record: Any = json.loads(said.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if record.get("do") == "end":
        return ""
    return str(record["error"]) if "error" in record else None


def _end(given: dict[str, Any], lines: list[socket.socket], message: str) -> None:
    if message:
        os.write(given["stderr"], f"entropix: {message}\n".encode())
        order = json.dumps({"do": "end", "code": given["code"]}).encode() + b"\n"
        for line in lines:
            try:
                line.sendall(order)
            except OSError:  # the one that is lost
                continue
    os.kill(given["parent"], signal.SIGKILL)


if __name__ == "__main__":
    main()
