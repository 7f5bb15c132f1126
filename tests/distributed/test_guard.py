"""The process that ends a rank while MLX lets nothing else run."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest

from entropix_mlx.distributed.guard import guarded

BUSY = """
import os, sys, time
from entropix_mlx.distributed.guard import guarded
with guarded({int(sys.argv[1]): sys.argv[2], int(sys.argv[3]): "another"}, 2, 3):
    print("in", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def rank():
    """A process that is guarded, and the other ends of its two connections."""
    (first, one), (second, other) = socket.socketpair(), socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(one.fileno()), "rank 1 was lost", str(other.fileno())],
        pass_fds=[one.fileno(), other.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    one.close()
    other.close()
    with first, second, process:
        assert process.stdout.readline() == "in\n"
        yield process, first, second
        process.kill()


def test_a_connection_that_ends_ends_the_rank_and_tells_the_others(rank):
    process, first, second = rank
    first.close()
    assert process.wait(20) == -signal.SIGKILL
    assert process.stderr.read() == "entropix: rank 1 was lost\n"
    assert json.loads(second.recv(1000)) == {"do": "end", "code": 3}


@pytest.mark.parametrize(
    ("sent", "printed"),
    [
        (b'{"do":"end","code":2}\n', ""),
        (b'{"error":"no such model"}\n', "entropix: no such model\n"),
    ],
)
def test_an_end_or_an_error_ends_the_rank_and_another_order_does_not(rank, sent, printed):
    process, first, second = rank
    second.sendall(b'{"do":"meet"}\n')
    first.sendall(sent)
    assert process.wait(20) == -signal.SIGKILL
    assert process.stderr.read() == printed


def test_nothing_happens_where_all_goes_well():
    first, one = socket.socketpair()
    with first, one:
        with guarded({one.fileno(): "lost"}, 2, 3):
            pass
        one.sendall(b"still there")
        assert first.recv(100) == b"still there"
