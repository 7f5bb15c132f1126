"""A process that runs command lines, each in a fork of its own with limits on time and memory.

Importing everything takes seconds, so it is done once. A fork made after MLX's first evaluation
would hang: this process never evaluates anything.

It reads JSON lines such as ``{"arguments": ["read", "x.txt"], "input": "", "folder": "/tmp"}``
and writes one for each: `code` (negative for a signal), `out`, `err`, `seconds` and `bytes`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from pathlib import Path

CPU_SECONDS = 10
WALL_SECONDS = 40
ADDRESS_SPACE = 6 * 2**30
SHOWN = 20_000


def main() -> None:
    # Everything that a command may import.
    import transformers  # noqa: F401

    from entropix_mlx import __main__, cli  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        case = json.loads(line)
        answers.write(json.dumps(run(case, cli.main)) + "\n")
        answers.flush()


def run(case, command):
    folder = Path(case["folder"])
    streams = [folder / name for name in (".in", ".out", ".err")]
    streams[0].write_text(case["input"])
    child = os.fork()
    if not child:
        signal.alarm(WALL_SECONDS)
        _be_the_command(case["arguments"], streams, folder, command)
    _, status, usage = os.wait4(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "out": streams[1].read_bytes()[-SHOWN:].decode(errors="replace"),
        "err": streams[2].read_bytes()[-SHOWN:].decode(errors="replace"),
        "seconds": usage.ru_utime + usage.ru_stime,
        "bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def _be_the_command(arguments, streams, folder, command):
    code = 99
    try:
        os.chdir(folder)
        for number, file in enumerate(streams):
            flags = os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(file, flags, 0o600), number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        code = command(arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code or 0)


if __name__ == "__main__":
    main()
