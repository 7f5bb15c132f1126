"""What `entropix serve` costs: many streams, a prefix that comes again, clients that vanish.

    python benchmarks/serving.py [--streams 16] [--tokens 64] [--vanish 200]

It starts a server with the demo model and sends requests with the openai package and raw sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time

import openai

from entropix_mlx import Settings, batch_generate, load
from entropix_mlx.api.prompts import chat_prompt

TOPICS = (
    *("the sea", "a lamp", "old maps", "winter", "a violin", "bread", "a lighthouse", "chess"),
    *("clouds", "a train", "moss", "a bell", "ink", "rivers", "a kite", "salt"),
)
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
NO_END = {"2": -100}
"""Answers of a certain length: the demo model's end-of-text token is never drawn."""


def say(*words):
    print(*words, flush=True)


def questions(count):
    return [f"Write some lines about {TOPICS[n % 16]} ({n})." for n in range(count)]


class Server:
    def __init__(self, *options):
        command = [sys.executable, "-m", "entropix_mlx", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines = ""
        while not (found := re.search(r":(\d+)/v1", lines)):
            lines += self.process.stderr.readline()
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def metric(self, name):
        with self.send(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n") as connection:
            text = connection.makefile("rb").read().decode()
        return float(re.search(rf"^entropix_{name} (\S+)", text, re.MULTILINE)[1])

    def send(self, content):
        connection = socket.create_connection(("127.0.0.1", self.port), 600)
        connection.sendall(content)
        return connection

    def wait(self):
        while self.metric("num_requests_running") or self.metric("num_requests_waiting"):
            time.sleep(0.01)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate()
        say("server: exit", self.process.returncode, "tracebacks", said.count("Traceback"))


async def stream(client, question, seed, tokens):
    """Return the tokens of an answer, and when the first one came."""
    began, first, found = time.perf_counter(), None, []
    response = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        stream=True,
        seed=seed,
        max_tokens=tokens,
        logit_bias=NO_END,
        extra_body={"think": False, "branch": False},
    )
    async for chunk in response:
        details = getattr(chunk.choices[0], "entropix", None)
        if details and "token" in details:
            first = first or time.perf_counter() - began
            found.append(details["token"])
    return found, first


async def many(url, model, streams, tokens):
    async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0, timeout=900) as client:
        numbered = list(enumerate(questions(streams)))
        began = time.perf_counter()
        together = await asyncio.gather(*(stream(client, q, n, tokens) for n, q in numbered))
        seconds = time.perf_counter() - began
        alone = [(await stream(client, q, n, tokens))[0] for n, q in numbered[:4]]
        again = [(await stream(client, q, n, tokens))[0] for n, q in numbered[:4]]
    return seconds, [found for found, _ in together], alone, again


async def prefixes(url):
    text = "The harbour was quiet, and nobody had seen the ship come in. " * 130
    async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0, timeout=900) as client:
        cold = (await stream(client, text + "Who saw it?", 1, 2))[1]
        warm = (await stream(client, text + "When was it?", 1, 2))[1]
    return cold, warm


def vanish(server, count):
    """Let clients vanish in the middle of their streams; return what is left."""
    body = json.dumps({"prompt": "Once", "max_tokens": 400, "stream": True, "logit_bias": NO_END})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    began = time.perf_counter()
    for _ in range(count // 8):
        opened = [server.send((head + body).encode()) for _ in range(8)]
        for connection in opened:
            connection.recv(100)
            connection.close()
    left = time.perf_counter()
    server.wait()
    return left - began, time.perf_counter() - left


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("streams", 16), ("tokens", 64), ("repeats", 3), ("vanish", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    model, tokenizer = load()
    prompts = [chat_prompt(tokenizer, question) for question in questions(given.streams)]
    changes = {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}
    settings = [
        Settings(max_tokens=given.tokens, seed=n, changes=changes, logit_bias={2: -100})
        for n in range(given.streams)
    ]

    def library():
        began = time.perf_counter()
        batch = batch_generate(model, tokenizer, prompts, settings, batch=given.streams)
        answers = [[step.token for step in answer.steps] for answer in batch.finish()]
        return time.perf_counter() - began, answers

    server = Server("--batch", str(given.streams), "--cache-memory", "1G")
    try:
        total = given.streams * given.tokens
        for _ in range(given.repeats):
            own, expected = library()
            seconds, together, alone, again = asyncio.run(
                many(server.url, model, given.streams, given.tokens)
            )
            say(
                f"batch_generate {total / own:.1f} tokens/s, server {total / seconds:.1f}"
                f" (ratio {own / seconds:.2f})"
            )
            same = sum(one == other for one, other in zip(together, expected, strict=True))
            say(f"equal to batch_generate: {same} of {given.streams}")
            same = sum(one == other for one, other in zip(alone, together[:4], strict=True))
            say(f"alone as in company: {same} of 4; alone twice the same: {alone == again}")
        cold, warm = asyncio.run(prefixes(server.url))
        say(f"first token after {cold:.2f} s; with a common prefix {warm:.2f} s")
        say(f"vanished clients: {vanish(server, given.vanish)[1]:.2f} s until all slots were free")
    finally:
        server.end()


if __name__ == "__main__":
    main()
