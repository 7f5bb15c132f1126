"""A server for half an hour among clients that stay, cancel, vanish and switch between its models.

    python benchmarks/soak.py --models FOLDER FOLDER [--minutes 30]

One of the models is in memory at a time. Seeded answers are
compared with those that each request got alone. At the end everybody leaves, and the server is
ended while answers run and texts are written.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
from load import DOCS, Server

SETTLED = 300
"""Seconds after which the memory should grow no more."""
OTHER_MODEL = 0.05
"""The share of requests that ask for a model which is probably not in memory."""


class Soak:
    def __init__(self, server: Server, models: list[str], client: httpx.AsyncClient) -> None:
        self.server = server
        self.models = models
        self.client = client
        self.counts: Counter[str] = Counter()
        self.samples: list[tuple[float, float, int]] = []
        self.began = time.monotonic()
        words = " ".join(path.read_text() for path in sorted(DOCS.glob("*.md"))).split()
        self.cases = [
            {
                "model": model,
                "prompt": " ".join(words[50 * n : 50 * n + 10 + n]),
                "seed": n,
                "max_tokens": 40,
            }
            for model in models
            for n in range(20)
        ]
        self.references: list[str] = []

    @property
    def url(self) -> str:
        return f"{self.server.url}/v1/completions"

    async def answer(self, case: dict) -> str:
        response = await self.client.post(self.url, json=case)
        response.raise_for_status()
        return response.json()["choices"][0]["text"]

    def case(self) -> int:
        now = int((time.monotonic() - self.began) / 20) % len(self.models)
        other = random.random() < OTHER_MODEL
        return random.randrange(20) + 20 * (now if not other else 1 - now)

    async def seeded(self) -> None:
        number = self.case()
        same = await self.answer(self.cases[number]) == self.references[number]
        self.counts["seeded, equal" if same else "seeded, DIFFERENT"] += 1

    async def cancelled(self) -> None:
        case = self.cases[self.case()] | {"max_tokens": 200, "stream": True}
        async with self.client.stream("POST", self.url, json=case) as response:
            read = 0
            async for _ in response.aiter_lines():
                read += 1
                if read > random.randrange(40):
                    break
        self.counts["cancelled"] += 1

    async def fresh(self) -> None:
        """Ask something new."""
        case = self.cases[self.case()]
        await self.answer(case | {"prompt": f"{random.random()} {case['prompt']}"})
        self.counts["fresh"] += 1

    async def raw(self, head: str, content: bytes) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(head.encode() + content)
        await writer.drain()
        await asyncio.sleep(random.random() / 2)
        writer.close()

    async def gone(self) -> None:
        """Leave at once, or in the middle of the body."""
        body = json.dumps(self.cases[self.case()] | {"max_tokens": 200}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        sent = body[: random.choice((len(body), len(body) // 2))]
        await self.raw(f"{head}Content-Length: {len(body)}\r\n\r\n", sent)
        self.counts["gone" if len(sent) == len(body) else "half body"] += 1

    async def sample(self) -> None:
        await asyncio.sleep(5)
        process = Path(f"/proc/{self.server.process.pid}")
        pages = int((process / "statm").read_text().split()[1])
        seconds = time.monotonic() - self.began
        self.samples.append((seconds, pages / 256, len(list((process / "fd").iterdir()))))

    async def repeat(self, act, end: float) -> None:
        while time.monotonic() < end:
            try:
                await act()
            except (httpx.HTTPError, OSError) as error:
                self.counts[f"FAILED {type(error).__name__} {error}"] += 1
                await asyncio.sleep(0.1)

    async def run(self, minutes: float) -> None:
        self.references = [await self.answer(case) for case in self.cases]
        acts = (self.seeded,) * 4 + (self.fresh, self.cancelled, self.gone)
        self.began = time.monotonic()
        end = self.began + 60 * minutes
        await asyncio.gather(*(self.repeat(act, end) for act in (*acts, self.sample)))

    async def metrics(self) -> dict[str, float]:
        text = (await self.client.get(f"{self.server.url}/metrics")).text
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name.removeprefix("entropix_"): float(value) for name, value in lines}

    def report(self, metrics: dict[str, float]) -> None:
        for name, count in sorted(self.counts.items()):
            print(f"{name:24} {count}")
        for name in ("num_requests_running", "num_requests_waiting"):
            print(f"{name:24} {metrics[name]:.0f}")
        settled = [sample for sample in self.samples if sample[0] > SETTLED] or self.samples
        seconds, memory, files = (np.array(column) for column in zip(*settled, strict=True))
        slope = np.polyfit(seconds / 60, memory, 1)[0]
        print(f"memory                   {memory[0]:.0f} to {memory[-1]:.0f} MB")
        print(f"slope                    {slope:.2f} MB a minute")
        print(f"open files               {files.min()} to {files.max()}, at last {files[-1]}")


async def end_while_busy(soak: Soak) -> float:
    """End the server while answers run; return after how many seconds it was gone."""
    body = soak.cases[0] | {"max_tokens": -1, "n": 4}
    running = [asyncio.create_task(soak.client.post(soak.url, json=body)) for _ in range(4)]
    await asyncio.sleep(1)
    began = time.monotonic()
    soak.server.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(soak.server.process.wait)
    seconds = time.monotonic() - began
    await asyncio.gather(*running, return_exceptions=True)
    return seconds


async def soak(server: Server, models: list[str], minutes: float) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        own = Soak(server, models, client)
        await own.run(minutes)
        await asyncio.sleep(5)
        own.report(await own.metrics())
        print(f"ended after              {await end_while_busy(own):.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs=2, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    given = parser.parse_args()
    with contextlib.ExitStack() as held:
        options = ["--batch", "4", "--cache-memory", "20M"]
        first, other = given.models
        models = ("--model", first, "--models", other)
        server = Server("entropix_mlx", "serve", *models, *options)
        held.callback(server.end)
        names = [Path(model).name for model in given.models]
        asyncio.run(soak(server, names, given.minutes))


if __name__ == "__main__":
    main()
