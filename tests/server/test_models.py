"""One model in memory, and others that take its place."""

import asyncio

import pytest

from entropix_mlx.errors import WeightsError
from entropix_mlx.server.models import ModelSource
from tests.server.conftest import load

NO_END = {"logit_bias": {"257": -100}}


@pytest.fixture
def several(own_client):
    """A client of the models a, b and c, and the names of those that were loaded, in order."""
    loads = []

    def source(name):
        return ModelSource(name, lambda: loads.append(name) or load())

    return own_client(sources=[source(name) for name in "abc"]), loads


def in_memory(client):
    listed = client.get("/v1/models").json["data"]
    return {model["id"] for model in listed if model["entropix"]["loaded"]}


def test_a_model_takes_the_place_of_the_one_before(several):
    client, loads = several
    assert in_memory(client) == {"a"}
    assert client.chat(model="b").json["model"] == "b"
    assert in_memory(client) == {"b"}
    assert client.chat().json["model"] == "b", "who names none gets the one in memory"
    assert client.post("/v1/explain", json={"model": "c"}).status == 200
    assert loads == ["a", "b", "c"]


def test_an_unknown_name_lists_the_known_ones(several):
    client, loads = several
    names = ("gpt-4", "../a", "mlx-community/Llama-3.2-1B-Instruct-4bit", "/etc/passwd")
    for reply in (*(client.chat(model=name) for name in names), client.get("/v1/models/gpt-4")):
        assert reply.status == 404
        assert reply.error["code"] == "model_not_found"
        assert "a, b, c" in reply.error["message"]
    assert loads == ["a"]


def test_running_answers_end_before_their_model_leaves(several):
    client, loads = several

    async def run():
        long = {"prompt": "x", "max_tokens": 100, "seed": 1, **NO_END}
        names = "aabbaacc"
        replies = [client.ask("POST", "/v1/completions", json=long | {"model": n}) for n in names]
        return names, await asyncio.gather(*replies)

    names, replies = asyncio.run(run())
    assert [reply.json["model"] for reply in replies] == list(names)
    assert {reply.json["usage"]["completion_tokens"] for reply in replies} == {100}
    assert len({reply.choice["text"] for reply in replies}) == 1
    assert loads == ["a", "b", "a", "c"], "who waits for one model shares it"


def test_a_model_that_cannot_be_loaded_says_so_without_paths(own_client, caplog):
    def fail():
        raise WeightsError("/secret/path: the weights cannot be read")

    client = own_client(sources=[ModelSource("good", load), ModelSource("bad", fail)])
    for _ in range(2):
        reply = client.chat(model="bad")
        assert (reply.status, reply.error["code"]) == (500, "model_not_loaded")
        assert "secret" not in reply.content.decode()
    assert "secret" in caplog.text
    assert client.chat(model="good").status == 200


def test_a_client_that_leaves_while_it_waits_holds_nothing(several):
    client, _ = several

    async def run():
        body = {"prompt": "x", "max_tokens": 60, **NO_END}

        def asked(name):
            request = client.ask("POST", "/v1/completions", json=body | {"model": name})
            return asyncio.create_task(request)

        waiting, other = asked("a"), asked("b")
        await asyncio.sleep(0.05)
        other.cancel()
        return await asyncio.gather(waiting, asked("c"))

    assert [reply.status for reply in asyncio.run(run())] == [200, 200]
    assert in_memory(client) == {"c"}
