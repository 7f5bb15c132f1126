"""What strangers may cost: requests that are large, clients that go, connections that only wait."""

import asyncio
import contextlib
import json
import socket
import time
from dataclasses import replace

import pytest

from entropix_mlx.errors import EntropixError
from entropix_mlx.server import run_server
from entropix_mlx.server.intake import PIECE, SMALL_BODY, BodyReader, Intake
from entropix_mlx.server.model_info import Limits
from entropix_mlx.server.openai import parse
from entropix_mlx.server.openai.body import Body
from tests.server.test_mistakes import CHAT, GOODS, TEXT
from tests.server.test_scheduling import WAIT, until

PARSE = {CHAT: parse.parse_chat, TEXT: parse.parse_completion}
FIELDS = [
    *((CHAT, name) for name in (*GOODS[CHAT], "unknown")),
    *((TEXT, name) for name in GOODS[TEXT].keys() - GOODS[CHAT].keys() | {"logprobs"}),
]
SHAPES = {
    "text": lambda n: "a " * (n // 2),
    "numbers": lambda n: [1] * (n // 3),
    "texts": lambda n: ["a"] * (n // 5),
    "objects": lambda n: [{"role": "user", "content": "a"}] * (n // 34),
    "parts": lambda n: [{"role": "user", "content": [{"type": "text", "text": "a"}] * (n // 29)}],
    "fields": lambda n: {f"k{k}": 1 for k in range(n // 10)},
    "tables": lambda n: {f"think.k{k}": {"a": 1} for k in range(n // 22)},
    "biases": lambda n: {str(k): 1 for k in range(n // 9)},
    "dots": lambda n: {"." * n: 1},
    "depth": lambda n: json.loads("[" * (n // 99) + "]" * (n // 99)),
}


def seconds(path, name, shape, size, served):
    """Return the processor time of this thread that a request takes, at best."""
    content = json.dumps(GOODS[path] | {name: SHAPES[shape](size)}).encode()
    taken = []
    for _ in range(2):
        began = time.thread_time()
        with contextlib.suppress(EntropixError):
            PARSE[path](Body.parse(content), served)
        taken.append(time.thread_time() - began)
    return min(taken)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_field_of_a_request_takes_more_than_linear_time(client, shape):
    served = client.served
    for path, name in FIELDS:
        for attempt in range(3):  # the clock is not only ours
            few, many = (seconds(path, name, shape, size, served) for size in (4000, 32000))
            if many < 16 * few + 0.005:
                break
            assert attempt < 2, (path, name, few, many)


class Watched:
    """A tokenizer that reports the length of each text, before it is encoded."""

    def __init__(self, tokenizer, report):
        self._tokenizer, self._report = tokenizer, report

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, text, **options):
        self._report(len(text))
        return self._tokenizer.encode(text, **options)


@pytest.fixture
def intake(client, byte_tokenizer):
    """Return what makes an intake of a model with a long context, and a request for it."""
    served = client.served
    served = replace(served, config=replace(served.config, max_position_embeddings=10**6))

    def make(report):
        return Intake(served, Watched(byte_tokenizer, report), BodyReader(served.limits))

    def ask(text):
        return parse.parse_completion(Body({"prompt": text}), served), len(text)

    return make, ask


def test_a_small_request_is_tokenized_before_the_rest_of_a_large_one(intake):
    make, ask = intake
    seen, small = [], []

    async def run():
        loop = asyncio.get_running_loop()

        def report(length):
            seen.append(length)
            if len(seen) == 3:
                start = asyncio.run_coroutine_threadsafe(one.tokenize(*ask("a" * 10)), loop)
                small.append(start)

        one = make(report)
        await one.tokenize(*ask("a" * 20 * PIECE))

    asyncio.run(run())
    assert len(small[0].result()[0].prompt) == 10
    assert seen.index(10) < 8
    assert seen[-1] == 20 * PIECE


def test_a_request_whose_client_has_gone_is_not_tokenized_further(intake):
    make, ask = intake
    seen = []

    async def run():
        loop = asyncio.get_running_loop()

        def report(length):
            seen.append(length)
            if len(seen) == 3:
                for task in large:
                    loop.call_soon_threadsafe(task.cancel)

        one = make(report)
        large = [asyncio.create_task(one.tokenize(*ask("a" * 20 * PIECE))) for _ in range(9)]
        await asyncio.gather(*large, return_exceptions=True)
        assert len((await one.tokenize(*ask("b")))[0].prompt) == 1

    asyncio.run(run())
    assert len(seen) <= 6


@pytest.mark.parametrize("text", ["a" * 10**6, "é" * 10**6])
def test_a_prompt_that_no_context_holds_is_not_tokenized(client, byte_tokenizer, text):
    seen = []
    bodies = BodyReader(client.served.limits)
    intake = Intake(client.served, Watched(byte_tokenizer, seen.append), bodies)
    with pytest.raises(EntropixError):
        asyncio.run(intake.parse(Body({"prompt": text}), len(text), parse.parse_completion))
    assert not seen


def test_large_bodies_have_few_places_and_small_ones_do_not_need_them(own_client, client):
    strict = own_client(limits=Limits(large_bodies=0))
    assert strict.complete(user="a" * SMALL_BODY).status == 429
    assert strict.complete().status == 200
    assert client.complete(user="a" * SMALL_BODY).status == 200


# ── Connections ─────────────────────────────────────────────────────────────────────────────────


def connected(listener, content=b""):
    address = listener.url.removeprefix("http://").split(":")
    connection = socket.create_connection((address[0], int(address[1])), WAIT)
    connection.sendall(content)
    return connection


def asked(body, more=""):
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\n{more}"
    )
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def test_who_sends_nothing_more_gets_the_answer(listener, monkeypatch):
    monkeypatch.setattr(run_server, "GONE_SECONDS", 0.001)
    body = {"prompt": "a", "max_tokens": 100, "logit_bias": {"257": -100}}
    with connected(listener, asked(body)) as connection:
        connection.shutdown(socket.SHUT_WR)
        received = connection.makefile("rb").read()
    interim, _, answer = received.rpartition(b"HTTP/1.1 200 OK\r\n")
    assert interim.replace(run_server.STILL_HERE, b"") == b""
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["usage"]["completion_tokens"] == 100


def test_who_leaves_in_the_body_is_no_error_of_the_server(listener, client, caplog):
    with connected(listener, asked({"prompt": "a"})[:-3]):
        pass
    until(lambda: 'status="499"' in listener.metrics.text())
    assert 'status="500"' not in listener.metrics.text()
    assert not caplog.records


def test_a_new_connection_takes_the_place_of_the_one_that_is_idle_longest(listener, monkeypatch):
    monkeypatch.setattr(run_server, "MOST_CONNECTIONS", 3)
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    stream = {"prompt": "a", "max_tokens": 200, "stream": True, "logit_bias": {"257": -100}}
    with connected(listener, asked(stream)) as busy, connected(listener) as first:
        busy.recv(10)
        others = [connected(listener) for _ in range(2)]
        assert first.recv(10) == b""
        others[1].sendall(health)
        assert others[1].recv(12) == b"HTTP/1.1 200"
        for other in others:
            other.close()
        assert busy.recv(10), "who is answered keeps the connection"


@pytest.mark.parametrize("sent", [b"GET / HT", asked({"prompt": "a"})[:-3]])
def test_who_sends_too_slowly_is_cut(own_client, listener, monkeypatch, sent):
    monkeypatch.setattr(run_server, "HEADER_SECONDS", 0.05)
    object.__setattr__(listener.limits, "body_seconds", 0.05)
    with connected(listener, sent) as connection:
        received = connection.makefile("rb").read()
    assert received == b"" or received.startswith(b"HTTP/1.1 408")
