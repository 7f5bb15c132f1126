"""What a client gets that asks for something wrong: never a 500, always what is wrong."""

import asyncio
import os
from random import Random

import pytest

from entropix_mlx.server import answering
from tests.fuzz.mutations import damaged_bytes, damaged_json

TIMES = 150 * int(os.environ.get("FUZZ_TIMES", "1"))
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


TOOL = {"type": "function", "function": {"name": "f"}}
WRONG_CALLS = (
    *({}, [{}], [{"id": "a"}], [{"id": 1, "function": {"name": "f", "arguments": "{}"}}]),
    *([{"id": "a", "function": {"name": "f", "arguments": wrong}}] for wrong in ("{", "[]", 7)),
)
CHAT_MISTAKES = {
    "temprature": [1],
    "temperature": ["hot", -1],
    "top_p": [-1, 2, False],
    "loops": ["x"],
    "reasoning_effort": ["high", 3],
    "thinking_budget": [-1],
    "chat_template_kwargs": [[], {"messages": []}, {"chat_template": "x"}, {"a": "x" * 70000}],
    "sampler": ["best"],
    "logit_bias": [{"258": 1}, {"a": 1}, [1]],
    "n": [0, True],
    "seed": [2**65],
    "max_tokens": [0],
    "stop": [[""], ["x"] * 99],
    "top_logprobs": [2],
    "response_format": [{"type": "xml"}, {"type": "json_schema"}, {"type": "text", "schema": {}}],
    "constraint": [
        *({"json_schema": {"type": "objct"}}, {"json_schema": "{"}, {}, {"colour": "red"}),
        *({"regex": "("}, {"regex": ""}, {"regex": "a(?=b)"}, {"regex": 7}, "[0-9]+"),
        *({"choice": []}, {"choice": ["a", 1]}, {"grammar": "start: other"}),
        {"regex": "a", "choice": ["b"]},
    ],
    "tools": [
        *([{}], {}, [TOOL] * 2, [TOOL] * 129, [TOOL]),  # this model's template shows no tools
        *([TOOL | {"type": "custom"}], [{"type": "function", "function": {"name": "a b"}}]),
    ],
    "tool_choice": ["required", "best", {"type": "function", "function": {"name": "f"}}],
    "parallel_tool_calls": ["no"],
    "functions": [[{}]],
    "stream_options": [{"include_usage": True}],
    "messages": [
        None,
        [{"role": "tool", "content": "x"}],
        [{"role": "tool", "content": "x", "tool_call_id": "y"}],  # shown to no template
        *([{"role": "assistant", "tool_calls": calls}] for calls in WRONG_CALLS),
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ],
    "profile": [{"thresholds": {"low": 1}}, "x"],
    "branch": [{"width": 2}, "x"],
    "set": [{"thresholds.low_entropy": "x"}, {"think.text": "x" * 70000}],
    "think": ["no"],
    "prefix": [[-1], 7],
    "forced": ["a", [258]],
}
TEXT_MISTAKES = {
    "prompt": ["", [258], "a" * 300, ["a", 1], ["a"] * 999],
    "max_tokens": [0],
    "logprobs": [True],
    "answers": [65, "many"],
    "suffix": ["b"],
    "best_of": [2],
}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        *((CHAT, {name: bad}, name) for name, given in CHAT_MISTAKES.items() for bad in given),
        (CHAT, {"sampler": "greedy", "top_k": 4}, "top_k"),
        (
            CHAT,
            {"constraint": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "constraint",
        ),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"set": {"branch.width": 64}}, "set"),
        *((TEXT, {name: bad}, name) for name, given in TEXT_MISTAKES.items() for bad in given),
        (TEXT, {"prompt": ["a"] * 100, "n": 2}, "n"),
        (TEXT, {"echo": True, "prefix": "b"}, "prefix"),
        (TEXT, {"answers": 64, "n": 3}, "n"),
        (TEXT, {"answers": 2, "echo": True, "logprobs": 1}, "answers"),
    ],
)
def test_a_mistake_is_reported_with_the_name_of_the_field(client, path, body, param, caplog):
    body = {CHAT: {"messages": HI}, TEXT: {"prompt": "a"}}[path] | body
    reply = client.post(path, json=body)
    assert reply.status == 400
    assert reply.error["param"] == param
    assert reply.error["type"] == "invalid_request_error"
    assert 10 < len(reply.error["message"]) < 400
    assert not caplog.records


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        (TEXT, "prompt", {"prompt": "a" * 300}),
        (CHAT, "messages", {"messages": [{"role": "user", "content": "a" * 300}]}),
        ("/v1/responses", "input", {"input": "a" * 300}),
    ],
)
def test_an_error_before_the_first_token_is_no_stream(client, path, name, body):
    reply = client.post(path, json=body | {"stream": True})
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert reply.error["param"] == name


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *[("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("DELETE", "/", 405)],
        *[("POST", "/v1/models", 405), ("GET", "/v1/model", 404), ("GET", "/%2e%2e/", 404)],
        *[("GET", "/v1/chat/completions/", 404), ("OPTIONS", "/v1/completions", 405)],
        *[("POST", "/v1/embeddings", 404), ("GET", "/v1/responses/resp_1", 404)],
    ],
)
def test_routes_that_there_are_not(client, method, path, status):
    reply = asyncio.run(client.ask(method, path))
    assert reply.status == status
    assert reply.error["message"]


def test_bodies_have_a_limit(client, monkeypatch):
    monkeypatch.setattr(answering, "BODY_BYTES", 1000)
    reply = client.complete("a" * 2000)
    assert (reply.status, reply.error["code"]) == (413, "body_too_long")

    async def pieces():
        for _ in range(20):
            yield b"a" * 100

    assert client.post("/v1/completions", content=pieces()).status == 413
    assert client.complete().status == 200


def test_a_body_that_does_not_come_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr(answering, "BODY_SECONDS", 0.1)

    async def slow():
        yield b"{"
        await asyncio.sleep(30)

    assert client.post("/v1/completions", content=slow()).status == 408


GOOD = {
    **{"max_tokens": 2, "n": 2, "stream": False, "seed": 1, "stop": ["x"], "sampler": "entropix"},
    **{"temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1},
    **{"presence_penalty": 1, "frequency_penalty": 1, "logit_bias": {"65": 1}},
    **{"prefix": [65], "forced": [66], "think": False},
    **{"profile": "reference", "branch": True},
    **{"set": {"thresholds.low_entropy": 1.0}, "model": "tiny", "user": "x"},
}
FREE = {"response_format": {"type": "text"}, "tools": [], "constraint": {"regex": r"(.|\n)*"}}
BLOCKS = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "So"}]}]
GOODS = {
    CHAT: GOOD | {"messages": HI, "logprobs": True, "top_logprobs": 2, **FREE},
    TEXT: GOOD | {"prompt": ["Hi", [65]], "logprobs": 2},
    "/v1/responses": {
        **{"input": [{"type": "message", **HI[0]}], "instructions": "a", "max_output_tokens": 2},
        **{"text": {"format": {"type": "text"}}, "tools": [], "tool_choice": "auto", "seed": 1},
        **{"store": False, "include": [], "reasoning": {"effort": None}, "top_logprobs": 2},
    },
    "/v1/messages": {
        **{"messages": BLOCKS, "system": [{"type": "text", "text": "a"}], "max_tokens": 2},
        **{"stop_sequences": ["x"], "tools": [], "tool_choice": {"type": "auto"}, "top_k": 5},
        "thinking": {"type": "enabled", "budget_tokens": 9},
    },
}
HEADERS = (
    *({}, {}, {}, {"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}),
    *({"Authorization": "Bearer x"}, {"Origin": "https://evil.example"}, {"X-Long": "a" * 5000}),
)


def test_malformed_requests_break_nothing(client, caplog):
    async def ask_all():
        statuses = []
        for path, body in GOODS.items():
            assert (await client.ask("POST", path, json=body)).status == 200
        for seed in range(TIMES):
            random = Random(seed)
            path, headers = random.choice(list(GOODS)), random.choice(HEADERS)
            body = damaged_json(GOODS[path], random).encode()
            if random.random() < 0.2:
                body = damaged_bytes(body, random)
            reply = await client.ask("POST", path, content=body, headers=headers)
            if reply.status != 200:
                assert reply.error["message"], seed
                assert "Traceback" not in reply.content.decode()
            statuses.append(reply.status)
        return statuses

    statuses = asyncio.run(ask_all())
    assert set(statuses) <= {200, 400, 403, 404, 408, 413, 429}
    assert statuses.count(400) > TIMES / 2
    assert not caplog.records
