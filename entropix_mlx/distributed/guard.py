"""Guarding a call of MLX during which nothing else of Python runs, by a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

from . import sentinel


@contextlib.contextmanager
def guarded(lines: Mapping[int, str], stderr: int, code: int) -> Iterator[None]:
    """End this process, from outside, where a connection ends.

    Args:
        lines: descriptors of the connections, and what to tell where each ends; an empty text is
            not told.
        stderr: a descriptor, where to tell it.
        code: what the other sides are told to end with.
    """
    given = {"parent": os.getpid(), "code": code, "stderr": stderr, "lines": list(lines.items())}
    with subprocess.Popen(
        [sys.executable, "-I", "-S", sentinel.__file__, json.dumps(given)],
        stdin=subprocess.PIPE,
        pass_fds=[*lines, stderr],
    ):
        yield  # leaving closes the sentinel's stdin, and waits for it
