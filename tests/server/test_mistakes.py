"""What a client gets that asks for something wrong: never a 500, always what is wrong."""

import asyncio
import os
import sys

import pytest

from entropix_mlx.server.model_info import Limits
from tests.server.malformed import malformed

TIMES = 150 * int(os.environ.get("FUZZ_TIMES", "1"))
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": HI, "temprature": 1}, "temprature"),
        (CHAT, {"messages": HI, "temperature": "hot"}, "temperature"),
        (CHAT, {"messages": HI, "temperature": -1}, "temperature"),
        (CHAT, {"messages": HI, "top_p": 0}, "top_p"),
        (CHAT, {"messages": HI, "sampler": "greedy", "top_k": 4}, "top_k"),
        (CHAT, {"messages": HI, "sampler": "best"}, "sampler"),
        (CHAT, {"messages": HI, "presence_penalty": 3}, "presence_penalty"),
        (CHAT, {"messages": HI, "logit_bias": {"65": 101}}, "logit_bias"),
        (CHAT, {"messages": HI, "logit_bias": {"258": 1}}, "logit_bias"),
        (CHAT, {"messages": HI, "n": 0}, "n"),
        (CHAT, {"messages": HI, "n": True}, "n"),
        (CHAT, {"messages": HI, "seed": 2**63}, "seed"),
        (CHAT, {"messages": HI, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HI, "stop": [""]}, "stop"),
        (CHAT, {"messages": HI, "stop": ["x"] * 99}, "stop"),
        (CHAT, {"messages": HI, "top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"messages": HI, "tools": [{}]}, "tools"),
        (CHAT, {"messages": HI, "functions": [{}]}, "functions"),
        (CHAT, {"messages": HI, "stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (CHAT, {"messages": HI, "profile": {"thresholds": {"low": 1}}}, "profile"),
        (CHAT, {"messages": HI, "set": {"thresholds.low_entropy": "x"}}, "set"),
        (CHAT, {"messages": HI, "set": {"think.text": "x" * 70000}}, "set"),
        (CHAT, {"messages": HI, "set": {"branch.width": 64}}, "branch"),
        (CHAT, {"messages": HI, "branch": {"width": "x"}}, "width"),
        (CHAT, {"messages": HI, "think": "no"}, "think"),
        (CHAT, {"messages": HI, "prefix": [-1]}, "prefix"),
        (CHAT, {"messages": HI, "prefix": 7}, "prefix"),
        (CHAT, {"messages": HI, "forced": "a"}, "forced"),
        (CHAT, {"messages": HI, "forced": [258]}, "forced"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": [258]}, "prompt"),
        (TEXT, {"prompt": "a" * 300}, "prompt"),
        (TEXT, {"prompt": ["a", 1]}, "prompt"),
        (TEXT, {"prompt": ["a"] * 999}, "prompt"),
        (TEXT, {"prompt": ["a"] * 100, "n": 2}, "n"),
        (TEXT, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (TEXT, {"prompt": "a", "logprobs": True}, "logprobs"),
        (TEXT, {"prompt": "a", "best_of": 3}, "best_of"),
        (TEXT, {"prompt": "a", "suffix": "b"}, "suffix"),
        (TEXT, {"prompt": "a", "echo": True, "prefix": "b"}, "prefix"),
    ],
)
def test_a_mistake_is_told_with_the_name_of_the_field(client, path, body, param, caplog):
    reply = client.post(path, json=body)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert reply.error["type"] == "invalid_request_error"
    assert 10 < len(reply.error["message"]) < 400
    assert not caplog.records


def test_an_error_before_the_first_token_is_no_stream(client):
    reply = client.complete("a" * 300, stream=True)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *[("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("DELETE", "/", 405)],
        *[("POST", "/v1/models", 405), ("GET", "/v1/models/", 404), ("GET", "/%2e%2e/", 404)],
        *[("GET", "/v1/chat/completions/", 404), ("OPTIONS", "/v1/completions", 405)],
    ],
)
def test_routes_that_there_are_not(client, method, path, status):
    reply = asyncio.run(client.ask(method, path))
    assert reply.status == status
    assert reply.error["message"]


def test_bodies_have_a_limit(own_client):
    client = own_client(limits=Limits(body_bytes=1000))
    reply = client.complete("a" * 2000)
    assert (reply.status, reply.error["code"]) == (413, "body_too_long")

    async def pieces():
        for _ in range(20):
            yield b"a" * 100

    assert client.post("/v1/completions", content=pieces()).status == 413
    assert client.complete().status == 200


def test_a_body_that_does_not_come_is_not_waited_for(own_client):
    client = own_client(limits=Limits(body_seconds=0.1))

    async def slow():
        yield b"{"
        await asyncio.sleep(30)

    assert client.post("/v1/completions", content=slow()).status == 408


def test_malformed_requests_break_nothing(client, caplog):
    async def ask_all():
        statuses = []
        for seed in range(TIMES):
            path, body, headers = malformed(seed)
            reply = await client.ask("POST", path, content=body, headers=headers)
            if reply.status != 200:
                assert reply.error["message"], seed
                assert "Traceback" not in reply.content.decode()
            statuses.append(reply.status)
            if seed == TIMES // 2:
                good = await client.ask("POST", TEXT, json={"prompt": "a", "max_tokens": 2})
                assert good.status == 200
        return statuses

    statuses = asyncio.run(ask_all())
    assert set(statuses) <= {200, 400, 403, 404, 408, 413, 429}
    assert statuses.count(400) > TIMES / 2
    assert not caplog.records
    print({status: statuses.count(status) for status in set(statuses)}, file=sys.stderr)
