"""Starting ranks as `mlx.launch` does, each with its own output to look at."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from entropix_mlx.distributed.environment import PATIENCE

ROOT = Path(__file__).parents[2]


def free_ports(count):
    """Return ports that follow one another, none of which is in use."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return list(range(first, first + count))


def launch(folder, size, command, paths=(), last=()):
    """Start a Python module on so many ranks; return their processes.

    The last rank looks for modules in further folders first, and has further arguments.
    """
    hosts, end = folder / "hosts.json", size - 1
    # The first port is for what is not MLX's.
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(size + 1)[1:]]))
    return [
        subprocess.Popen(
            [sys.executable, *command, *(last if rank == end else ())],
            env={PATIENCE: "60"}  # for a machine that is busy
            | os.environ
            | {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank)}
            | {"PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT] if rank == end else [ROOT]))},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def ended(processes, seconds=300):
    """Wait for all; return their exit codes, and what each printed on stdout and stderr."""
    try:
        told = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], told


def mlx_launch(size, *words):
    """Run the command line on so many ranks by `mlx.launch` itself; return what it printed."""
    launcher = [Path(sys.executable).parent / "mlx.launch", "-n", str(size), "--backend", "ring"]
    command = [*launcher, "--", sys.executable, "-m", "entropix_mlx", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), PATIENCE: "60"}
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        return process.communicate(timeout=300)[0].decode()
