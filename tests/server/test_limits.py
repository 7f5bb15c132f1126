"""What strangers may cost: requests that are large, and connections that only wait."""

import asyncio
import json
import socket

import pytest

from entropix_mlx.server import answering
from entropix_mlx.server.engine import Capacity
from tests.server.test_mistakes import CHAT, GOODS, TEXT
from tests.server.test_scheduling import WAIT, until
from tests.server.test_socket import post

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


@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_field_of_any_kind_is_answered_or_refused(client, shape):
    fields = [(CHAT, name) for name in (*GOODS[CHAT], "unknown")]
    fields += [(TEXT, name) for name in ("prompt", "echo")]
    for path, name in fields:
        body = GOODS[path] | {"max_tokens": 1, name: SHAPES[shape](64000)}
        reply = client.post(path, json=body)
        assert reply.status in (200, 400, 404), (path, name)


@pytest.mark.parametrize("text", ["a" * 10**6, "é" * 10**6])
def test_a_prompt_that_no_context_holds_is_refused(client, text):
    reply = client.complete(text)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


def test_a_body_of_16_megabytes_is_refused(client):
    reply = client.complete("a" * 2**24)
    assert (reply.status, reply.error["code"]) == (413, "body_too_long")


def test_64_clients_at_once_are_all_answered(own_client):
    client = own_client(capacity=Capacity(8, 64, 2**20))

    async def run():
        body = {"prompt": "The quick brown fox", "max_tokens": 4, "seed": 1}
        asked = (client.ask("POST", "/v1/completions", json=body) for _ in range(64))
        return await asyncio.gather(*asked)

    replies = asyncio.run(run())
    assert {reply.status for reply in replies} == {200}
    assert len({reply.choice["text"] for reply in replies}) == 1


def connected(listener, content=b""):
    address = listener.url.removeprefix("http://").split(":")
    connection = socket.create_connection((address[0], int(address[1])), WAIT)
    connection.sendall(content)
    return connection


def test_who_leaves_in_the_body_is_no_error_of_the_server(listener, caplog):
    with connected(listener, post({"prompt": "a"})[:-3]):
        pass
    until(lambda: 'status="499"' in listener.metrics.text())
    assert 'status="500"' not in listener.metrics.text()
    assert not caplog.records


def test_who_sends_a_body_too_slowly_is_cut(listener, monkeypatch):
    monkeypatch.setattr(answering, "BODY_SECONDS", 0.05)
    with connected(listener, post({"prompt": "a"})[:-3]) as connection:
        received = connection.makefile("rb").read()
    assert received.startswith(b"HTTP/1.1 408")
