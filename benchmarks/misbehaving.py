"""The first token of a well-behaved client while others misbehave in every way at once.

    python benchmarks/misbehaving.py [--clients 20] [--seconds 120] [--model FOLDER]

It starts a server, asks it once a second, first alone and then in that company, and prints both
medians, their ratio, how the server's memory and open files grew, and which answers are left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

HEAD = "POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


def request(path, content, *, length=None):
    more = f"Content-Length: {len(content) if length is None else length}\r\n"
    return HEAD.format(path=path, more=more).encode() + content


def asking(**body):
    return json.dumps({"prompt": "Once upon a time", "max_tokens": 8} | body).encode()


class Company:
    """Clients that misbehave; each method is one way, and begins again when it has ended."""

    def __init__(self, port):
        self._port = port

    @contextlib.asynccontextmanager
    async def sent(self, content=b"", read=0):
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            for start in range(0, len(content), 2**16):
                writer.write(content[start : start + 2**16])
                await writer.drain()
            if read:
                await asyncio.wait_for(reader.read(read), 20)
            yield reader, writer
        finally:
            writer.close()

    async def idle(self):
        async with contextlib.AsyncExitStack() as opened:
            for _ in range(300):
                await opened.enter_async_context(self.sent())
            await asyncio.sleep(20)

    async def slow(self, content):
        async with self.sent(content) as (_, writer):
            for _ in range(60):
                writer.write(b"X")
                await writer.drain()
                await asyncio.sleep(1)

    async def slow_head(self):
        await self.slow(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-")

    async def slow_body(self):
        await self.slow(request(TEXT, b'{"prompt": "' + b"a" * 10**5, length=4 * 10**6))

    async def single_bytes(self):
        head = HEAD.format(path=TEXT, more="Transfer-Encoding: chunked\r\n").encode()
        async with self.sent(head + b"1\r\na\r\n" * 10**5, read=100):
            pass

    async def huge_and_gone(self):
        text = "the old sea and a lamp, " * 170_000
        async with self.sent(request(TEXT, asking(prompt=text))):
            pass

    async def huge(self):
        async with self.sent(request(TEXT, asking(prompt="7" * 4_000_000)), read=100):
            pass

    async def numbers(self):
        async with self.sent(request(TEXT, asking(prompt=[1] * 1_300_000)), read=100):
            pass

    async def deep(self):
        content = b'{"prompt": ' + b"[" * 10**6 + b"]" * 10**6 + b"}"
        async with self.sent(request(TEXT, content), read=100):
            pass

    async def fields(self):
        content = asking(set={f"k{n}": 1 for n in range(60_000)})
        async with self.sent(request(TEXT, content), read=100):
            pass

    async def messages(self):
        messages = [{"role": "user", "content": "a"}] * 100_000
        content = json.dumps({"messages": messages, "max_tokens": 1}).encode()
        async with self.sent(request(CHAT, content), read=100):
            pass

    async def half_closed(self):
        async with self.sent(request(TEXT, asking())) as (reader, writer):
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 20)

    async def many_and_gone(self):
        async with self.sent(request(TEXT, asking(n=100, max_tokens=50))):
            await asyncio.sleep(0.1)

    async def unread(self):
        async with self.sent(request(TEXT, asking(stream=True, max_tokens=-1)), read=100):
            await asyncio.sleep(10)

    async def go_on(self, number, names):
        ways = [getattr(self, name) for name in names]
        for way in itertools.cycle(ways[number % len(ways) :] + ways[: number % len(ways)]):
            with contextlib.suppress(OSError, TimeoutError):
                await way()
            await asyncio.sleep(0.2)


WAYS = (
    *("idle", "slow_head", "slow_body", "single_bytes", "huge_and_gone", "huge", "numbers"),
    *("deep", "fields", "messages", "half_closed", "many_and_gone", "unread"),
)


def misbehave(port, clients, names):
    """Run in a process of its own, or the clients would wait for one another."""

    async def go_on():
        company = Company(port)
        await asyncio.gather(*(company.go_on(number, names) for number in range(clients)))

    asyncio.run(go_on())


async def first_token(company):
    began = time.perf_counter()
    async with company.sent(request(TEXT, asking(stream=True)), read=100):
        return time.perf_counter() - began


async def measure(company, seconds):
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found.append(await first_token(company))
        except (OSError, TimeoutError):
            found.append(float("inf"))
        await asyncio.sleep(1)
    return found


def memory(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024


def files(process):
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


async def left(company):
    """Return how many answers run and wait when all others are gone for some seconds."""
    await asyncio.sleep(10)
    async with company.sent(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n") as (reader, _):
        text = (await reader.read()).decode()
    return re.findall(r"^entropix_(num_requests_(?:running|waiting) \d+)", text, re.MULTILINE)


def shown(times):
    worst = sorted(times)[int(0.95 * (len(times) - 1))]
    return f"median {statistics.median(times):.3f} s, 95 % {worst:.3f} s, {len(times)} requests"


def run(port, process, given):
    company = Company(port)
    asyncio.run(measure(company, 5))
    alone = asyncio.run(measure(company, min(given.seconds / 4, 60)))
    before = memory(process), files(process)
    others = multiprocessing.Process(target=misbehave, args=(port, given.clients, given.ways))
    others.start()
    together = asyncio.run(measure(company, given.seconds))
    others.terminate()
    print(f"alone:       {shown(alone)}\ntogether:    {shown(together)}")
    print(f"ratio:       {statistics.median(together) / statistics.median(alone):.2f}")
    print(f"memory:      {before[0]} MB, then {memory(process)} MB")
    print(f"left:        {', '.join(asyncio.run(left(company)))}")
    print(f"open files:  {before[1]}, then {files(process)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--model")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    given = parser.parse_args()
    command = [sys.executable, "-m", "entropix_mlx", "serve", "--port", "0"]
    command += ["--model", given.model] if given.model else []
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines = ""
    while not (found := re.search(r":(\d+)/v1", lines)):
        lines += process.stderr.readline()
    try:
        run(int(found[1]), process, given)
    finally:
        process.send_signal(signal.SIGTERM)
        print("server said:", process.communicate()[1][-2000:] or "nothing")


if __name__ == "__main__":
    main()
