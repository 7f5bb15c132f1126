"""Several ranks on this machine against one process: texts, numbers, memory, bytes, losses.

    python benchmarks/distributed.py compare          one process and three ranks
    python benchmarks/distributed.py kills --count 20 a random rank is killed at a random time

Ranks are started as `mlx.launch` does it, over the ring backend on the loopback interface. The
bytes are those that the kernel counts for MLX's connections (Linux), beside what the model of
distributed_cost.py says.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPT = "Tell me a story about a lighthouse keeper, her cat and a storm."
FORKED = "Write three sentences about a dragon who cannot decide between two caves."
THOUGHTFUL = "Explain why some people believe in ghosts, and whether they are right."
THOUGHTS = {
    "thresholds": {"think_min_entropy": 1.5, "think_max_varentropy": 12.0},
    "think": {"max_insertions": 3, "place": "word", "loop_length": 0, "min_gap": 8, "watch": 4},
    "branch": {"width": 3, "depth": 4},
}
"""With these a thought is inserted, and a fork is followed, within 24 tokens."""
COUNTS = {"thoughts": 24, "long": 4}
"""Tokens of the answers that are short."""
LONG = 500
"""Tokens of the prompt whose memory is compared."""
BYTES_SENT = 200
"""Where `struct tcp_info` of Linux has the bytes that were sent."""
ENDED_WITHIN = 10.0
STARTING_PORT = 42100


def start(folder: Path, ranks: int, command: list[str], port: int) -> list[subprocess.Popen[str]]:
    """Start a command on so many ranks, or on a process alone; its files go to a folder."""
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port + rank}"] for rank in range(ranks)]))
    group = {"MLX_HOSTFILE": str(hosts)} if ranks > 1 else {}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | group | ({"MLX_RANK": str(rank)} if ranks > 1 else {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def bytes_sent() -> int:
    """Return what this process has sent over all of its connections but the hub's."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.getpeername() and connection.type == socket.SOCK_STREAM:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
                    total += struct.unpack_from("=Q", info, BYTES_SENT)[0]
        except (OSError, struct.error):
            continue
    return total


def measured(model: Any, tokenizer: Any, tokens: int) -> dict[str, Any]:
    import mlx.core as mx

    from entropix_mlx import chat_prompt, stream_generate

    found: dict[str, Any] = {}
    group = getattr(model, "group", None)
    room = model.config.max_position_embeddings - 8
    long = (tokenizer.encode("The quick brown fox jumps over the lazy dog. ") * LONG)[
        : min(LONG, room)
    ]
    cases = {
        "greedy": (chat_prompt(tokenizer, PROMPT), {"sampler": "greedy", "speculation": "off"}),
        "forks": (chat_prompt(tokenizer, FORKED), {"seed": 1}),
        "thoughts": (chat_prompt(tokenizer, THOUGHTFUL), {"seed": 1, "changes": THOUGHTS}),
        "long": (long, {"sampler": "greedy", "speculation": "off"}),
    }
    for name, (prompt, options) in cases.items():
        count = min(tokens, COUNTS.get(name, tokens))
        steps = []
        for step in stream_generate(model, tokenizer, prompt, max_tokens=count, **options):
            steps.append(step.to_dict())
            if group and name == "greedy" and len(steps) in (2, count - 2):
                counts = [bytes_sent(), len(steps) + len(prompt)]
                found.setdefault("traffic", []).append(counts)
        found[name] = steps
    found["peak"] = mx.get_peak_memory()
    return found


def child(arguments: argparse.Namespace) -> None:
    """Answer as one process or as rank 0, or work for rank 0."""
    import mlx.core as mx

    from entropix_mlx import load
    from entropix_mlx.checkpoints.loading import Extras
    from entropix_mlx.commands.ranks import coordinator, worker
    from entropix_mlx.distributed.environment import of_environment

    place = of_environment()

    def write(found: dict[str, Any]) -> int:
        rank = place.rank if place else 0
        Path(arguments.folder, f"{arguments.name}.{rank}.json").write_text(json.dumps(found))
        return 0

    if place is None:
        write(measured(*load(arguments.model), arguments.tokens))
        return
    if place.rank:
        leave = os._exit

        def leaving(code: int) -> None:
            write({"peak": mx.get_peak_memory()})
            leave(code)

        os._exit = leaving  # type: ignore[assignment]
        worker.work(place, lambda ranks: 0)

    def run(ranks: coordinator.Coordinator) -> int:
        model, tokenizer = ranks.load(model=arguments.model, dequantize=None, extras=Extras())
        return write(measured(model, tokenizer, arguments.tokens))

    coordinator.coordinate(place, run)


def differences(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, Any]:
    """Return whether two answers took the same decisions, and how far their numbers are apart."""
    names = ("token", "strategy", "origin", "rolled_back")
    same = [[step[name] for name in names] for step in one] == [
        [step[name] for name in names] for step in other
    ]
    apart: dict[str, float] = {}
    for mine, theirs in zip(one, other, strict=False):
        for name, value in mine.items():
            if isinstance(value, float) and name != "time":
                apart[name] = max(apart.get(name, 0.0), abs(value - theirs[name]))
    worst = max(apart, key=lambda name: apart[name])
    origins = {o: sum(step["origin"] == o for step in one) for o in {s["origin"] for s in one}}
    forks = sum(step["fork"] is not None for step in one)
    return {
        "same decisions": same,
        "tokens": len(one),
        "origins": origins,
        "forks": forks,
        "taken back": sum(step["rolled_back"] for step in one),
        "largest difference": f"{worst} {apart[worst]:.1e}",
    }


def compare(arguments: argparse.Namespace) -> int:
    from distributed_cost import Shape, sent

    from entropix_mlx.checkpoints.locate import default_model, locate, open_checkpoint
    from entropix_mlx.checkpoints.skeleton import shape_of
    from entropix_mlx.distributed.environment import PATIENCE

    os.environ.setdefault(PATIENCE, "60")  # for a machine that is busy
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for ranks in (1, arguments.ranks):
            command = [__file__, "child", "--folder", name, "--name", str(ranks)]
            command += ["--tokens", str(arguments.tokens)]
            command += ["--model", arguments.model] if arguments.model else []
            for process in start(folder, ranks, command, arguments.port):
                process.wait()
                if process.returncode:
                    print(process.communicate()[1], file=sys.stderr)
                    return 1
        one = json.loads((folder / "1.0.json").read_text())
        files = [folder / f"{arguments.ranks}.{rank}.json" for rank in range(arguments.ranks)]
        shares = [json.loads(file.read_text()) for file in files]
    for case in ("greedy", "forks", "thoughts", "long"):
        print(case, differences(one[case], shares[0][case]))
    for rank, share in enumerate(shares):
        print(f"rank {rank}: peak {share['peak'] / one['peak']:.3f} of {one['peak'] / 1e6:.0f} MB")
    config = shape_of(open_checkpoint(locate(arguments.model or default_model())))
    shape = Shape(
        name="",
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
        weights=0,
        number=4,
    )
    (counted, first), (counted_then, last) = shares[0]["traffic"]
    says = sum(sent(shape, arguments.ranks, keys) for keys in range(first, last)) / (last - first)
    counted = (counted_then - counted) / (last - first)
    print(f"bytes a token: the model says {says:.0f}, Linux {counted:.0f}")
    return 0


def kills(arguments: argparse.Namespace) -> int:
    """Kill a random rank at a random time, again and again; count what ended as it should.

    The times count from when the ranks are started, or from when all have met and rank 0 loads.
    """
    chosen = random.Random(arguments.seed)
    good = 0
    for number in range(arguments.count):
        with tempfile.TemporaryDirectory() as name:
            command = ["-m", "entropix_mlx", "generate", "--prompt", PROMPT, "-m", "400"]
            command += ["--model", arguments.model] if arguments.model else []
            port = arguments.port + 10 * number
            processes = start(Path(name), arguments.ranks, command, port)
            lost, after = chosen.randrange(arguments.ranks), chosen.uniform(0, arguments.within)
            first = processes[0].stderr
            met = first is not None and arguments.since == "met"
            began_with = first.readline() if first and met else ""
            time.sleep(after)
            processes[lost].send_signal(signal.SIGKILL)
            began = time.monotonic()
            logs = [began_with, *(process.communicate()[1] for process in processes)]
            took = time.monotonic() - began
            codes = [process.returncode for process in processes]
            messages = [line for text in logs for line in text.splitlines() if "entropix: " in line]
            ok = all(codes) and took < ENDED_WITHIN and len(messages) == 1
            good += ok and f"rank {lost}" in messages[0]
            print(f"rank {lost} after {after:.1f} s: {took:.1f} s, {codes}, {messages}", flush=True)
    print(f"{good} of {arguments.count} ended within {ENDED_WITHIN:.0f} s with one message")
    return 0 if good == arguments.count else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("compare", "kills", "child"))
    parser.add_argument("--model")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--within", type=float, default=20.0, help="seconds")
    parser.add_argument("--since", choices=("start", "met"), default="start", help="of the ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=STARTING_PORT)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "child":
        child(arguments)
        return 0
    return compare(arguments) if arguments.what == "compare" else kills(arguments)


if __name__ == "__main__":
    sys.exit(main())
