"""Many streams at once, beside `mlx_lm.server` on the same weights, in turns.

    python benchmarks/load.py [--model FOLDER] [--streams 8 16] [--rounds 3]
        [--mlx-lm "--prompt-concurrency 1 --prefill-step-size 256"] [--ways plain on]

Each round asks all servers for the same number of streams, with prompts of 100 to 600 tokens that
no server has seen, and waits for the end. `on` is this server with interventions, `plain` without
them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

NO_END = {"2": -100}
"""Answers of a certain length: the demo model's end-of-text token is never drawn."""
OWN = {
    "plain": {"think": False, "branch": False},
    "think": {"branch": False},
    "fork": {"think": False, "branch": True},
    "on": {"branch": True},
}
TOGETHER = 0.01
"""Seconds between tokens that came in one pass."""
TICKS = os.sysconf("SC_CLK_TCK")
DOCS = Path(__file__).parent.parent / "docs"


class Server:
    """A server in a process of its own, and the processor time that it takes."""

    def __init__(self, *command: str, **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = (sys.executable, "-m", *command, "--port", str(self.port))
        variables = os.environ | environment
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=variables)
        self.url = f"http://127.0.0.1:{self.port}"
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5)
            except OSError:
                time.sleep(0.2)
            else:
                break

    @property
    def processor_seconds(self) -> float:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


@dataclass(frozen=True)
class Stream:
    """When the chunks of an answer came, in seconds after its request."""

    times: Sequence[float]
    tokens: int
    prompt: int
    cached: int

    @property
    def longest_gap(self) -> tuple[float, float]:
        gaps = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        return max(gaps), statistics.median(gap for gap in gaps if gap > TOGETHER)


def prompts(count: int, chance: random.Random) -> list[str]:
    """Return different pieces of documentation, from short to long ones, in any order."""
    lengths = [50 + 230 * n // max(count - 1, 1) for n in range(count)]
    found = [f"Say what this is about.\n\n{text(length, chance)}" for length in lengths]
    return chance.sample(found, count)


def text(length: int, chance: random.Random) -> str:
    """Return so many words of documentation, of about two tokens each."""
    words = " ".join(path.read_text() for path in sorted(DOCS.glob("*.md"))).split()
    start = chance.randrange(len(words) - length)
    return " ".join(words[start : start + length])


async def stream(client: httpx.AsyncClient, url: str, question: str, more: dict) -> Stream:
    body = {
        "messages": [*more.get("before", ()), {"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": NO_END,
        **{name: value for name, value in more.items() if name != "before"},
    }
    began, times, usage = time.perf_counter(), [], {}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                times.append(time.perf_counter() - began)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Stream(times, usage["completion_tokens"], usage["prompt_tokens"], cached)


async def patient(client: httpx.AsyncClient, *asked) -> Stream:
    """Ask again where a server resets connections that come together, as `mlx_lm.server` does."""
    while True:
        try:
            return await stream(client, *asked)
        except (httpx.ConnectError, httpx.ReadError):
            await asyncio.sleep(0.05)


async def together(url: str, questions: Sequence[str], more: dict) -> list[Stream]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=900, limits=limits) as client:
        return await asyncio.gather(*(patient(client, url, one, more) for one in questions))


def measure(server: Server, questions: Sequence[str], more: dict) -> dict[str, float]:
    began, before = time.perf_counter(), server.processor_seconds
    streams = asyncio.run(together(server.url, questions, more))
    seconds = time.perf_counter() - began
    rates = [one.tokens / one.times[-1] for one in streams]
    gaps = [one.longest_gap for one in streams]
    first = [one.times[0] for one in streams]
    return {
        "tokens/s": sum(one.tokens for one in streams) / seconds,
        "processor s": server.processor_seconds - before,
        "first token": statistics.median(first),
        "last first token": max(first),
        "fairness": sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates)),
        "longest gap": max(longest for longest, _ in gaps),
        "gap / (median x streams)": max(a / (b * len(streams)) for a, b in gaps),
    }


def measure_prompts(server: Server, more: dict, chance: random.Random) -> None:
    """Print what eight clients with one new system prompt, and short prompts after long ones,
    cost."""
    system = {"role": "system", "content": text(280, chance)}
    questions = [f"What is number {n} about?" for n in range(8)]
    shared = asyncio.run(together(server.url, questions, more | {"before": [system]}))
    computed = sum(one.prompt - one.cached for one in shared)
    first = statistics.median(one.times[0] for one in shared)
    print(f"    one prompt of eight        {computed} tokens computed, of {shared[0].prompt} each")
    print(f"    first token of the eight   {first:8.2f}")
    questions = [text(800 if n < 4 else 20, chance) for n in range(8)]
    mixed = asyncio.run(together(server.url, questions, more))
    for name, streams in (("long", mixed[:4]), ("short", mixed[4:])):
        first = statistics.median(one.times[0] for one in streams)
        print(f"    first token, {name:5} of both {first:8.2f}", flush=True)


def report(found: dict[str, list[dict[str, float]]], base: str) -> None:
    """Print medians, and beside each its ratio to those of one way, a ratio a round."""
    for way, rounds in found.items():
        print(f"  {way}")
        for field in rounds[0]:
            value = statistics.median(one[field] for one in rounds)
            line = f"    {field:26} {value:8.2f}"
            if way != base and base in found:
                pairs = zip(rounds, found[base], strict=True)
                ratios = sorted(one[field] / other[field] for one, other in pairs if other[field])
                middle = statistics.median(ratios)
                line += f"   x {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder with float32 weights")
    parser.add_argument("--streams", type=int, nargs="+", default=(8, 16))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", nargs="*", default=("plain",), choices=tuple(OWN))
    parser.add_argument("--mlx-lm", nargs="*", default=("",), help="its options, once per server")
    parser.add_argument("--base", help="the way that ratios are to")
    given = parser.parse_args()
    own = Server(
        "entropix_mlx", "serve", "--model", given.model, "--batch", str(max(given.streams))
    )
    ways = {way: (own, OWN[way]) for way in given.ways}
    for options in given.mlx_lm:
        command = ["mlx_lm", "server", "--model", given.model, "--log-level", "ERROR"]
        ways[f"mlx_lm {options}".strip()] = (Server(*command, *shlex.split(options)), {})
    base = given.base or next((way for way in ways if way.startswith("mlx_lm")), "plain")
    try:
        for server, more in ways.values():
            measure(server, prompts(2, random.Random(0)), {"max_tokens": 8} | more)
        for count in given.streams:
            found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for number in range(given.rounds):
                questions = prompts(count, random.Random(f"{given.seed} {count} {number}"))
                for way, (server, more) in random.sample(list(ways.items()), len(ways)):
                    # No way has seen them, or its server would have them in its cache.
                    own_questions = [f"({way} {number}) {question}" for question in questions]
                    body = {"max_tokens": given.tokens} | more
                    found[way].append(measure(server, own_questions, body))
            print(f"{count} streams")
            report(found, base)
        for way, (server, more) in ways.items():
            print(f"  {way}")
            measure_prompts(server, {"max_tokens": 8} | more, random.Random(way))
    finally:
        for server in {server for server, _ in ways.values()}:
            server.end()


if __name__ == "__main__":
    main()
