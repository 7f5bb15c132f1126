"""Several models: which are found, which are in memory, and who waits for whom."""

import asyncio
import json
import threading

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from entropix_mlx.checkpoints.loading import Extras
from entropix_mlx.conversion import convert
from entropix_mlx.errors import EntropixError, ModelNotFoundError, SettingsError, WeightsError
from entropix_mlx.models.memory import weight_bytes
from entropix_mlx.server.batching import Capacity
from entropix_mlx.server.catalog import Loading, find_sources
from entropix_mlx.server.models import ModelSource
from tests.checkpoints.test_adapters import train
from tests.conftest import make_tiny_model
from tests.server.conftest import load
from tests.server.test_scheduling import LONG, WAIT, cached

ONE = weight_bytes(make_tiny_model())
"""The memory that one of the models takes."""
NO_END = {"logit_bias": {"257": -100}}


@pytest.fixture
def several(own_client):
    """Return what makes a client of the models a, b and c; its `loads` are in order."""

    def make(fits=1, **options):
        loads = []

        def source(name):
            return ModelSource(name, lambda _: loads.append(name) or load(), lambda: ONE)

        given = {"most_bytes": fits * ONE} | options
        client = own_client(sources=[source(name) for name in "abc"], models=given)
        object.__setattr__(client.server, "loads", loads)
        return client

    return make


def in_memory(client):
    listed = client.get("/v1/models").json["data"]
    return {model["id"] for model in listed if model["entropix"]["loaded"]}


def test_a_model_is_loaded_when_it_is_asked_for_and_the_oldest_leaves(several):
    client = several(fits=2)
    assert in_memory(client) == {"a"}
    assert client.chat(model="b").json["model"] == "b"
    assert client.chat(model="a").status == 200
    assert client.chat(model="c").status == 200
    assert in_memory(client) == {"a", "c"}
    assert client.server.loads == ["a", "b", "c"]
    assert client.chat().json["model"] == "a"


def test_models_are_loaded_and_let_go_by_request(several):
    client = several(fits=3)
    assert client.post("/v1/models/load", json={"model": "b"}).json["entropix"]["loaded"]
    assert client.get("/v1/models/b").json["max_model_len"]
    assert not client.post("/v1/models/unload", json={"model": "a"}).json["entropix"]["loaded"]
    assert in_memory(client) == {"b"}
    assert client.post("/v1/models/unload", json={"model": "a"}).status == 200
    assert client.post("/v1/models/unload", json={}).status == 400
    assert client.chat(model="a").status == 200


def test_a_model_that_other_machines_hold_stays(own_client):
    client = own_client(sources=[ModelSource("a", lambda _: load(), stays=True)])
    assert client.post("/v1/models/unload", json={"model": "a"}).error["code"] == "unsupported"
    assert in_memory(client) == {"a"}


def test_an_unknown_name_lists_the_known_ones(several):
    client = several(aliases={"gpt-4o-mini": "b"})
    for reply in (client.chat(model="gpt-4"), client.get("/v1/models/gpt-4")):
        assert reply.status == 404
        assert reply.error["code"] == "model_not_found"
        assert all(name in reply.error["message"] for name in ("a", "b", "c", "gpt-4o-mini"))
    assert client.server.loads == ["a"]


def test_aliases_stand_for_models(several):
    client = several(fits=3, aliases={"gpt-4o-mini": "b", "any": "c"})
    assert client.chat(model="gpt-4o-mini").json["model"] == "b"
    assert client.chat(model="whatever").json["model"] == "c"
    assert client.get("/v1/models/gpt-4o-mini").json["root"] == "b"
    assert "gpt-4o-mini" in {model["id"] for model in client.get("/v1/models").json["data"]}
    for wrong in ({"a": "b"}, {"x": "y"}):
        with pytest.raises(SettingsError):
            several(aliases=wrong)


def test_running_answers_end_before_their_model_leaves(several):
    client = several()

    async def run():
        long = {"prompt": "x", "max_tokens": 100, "seed": 1, **NO_END}
        names = "abcabbac"
        replies = [client.ask("POST", "/v1/completions", json=long | {"model": n}) for n in names]
        return names, await asyncio.gather(*replies)

    names, replies = asyncio.run(run())
    assert [reply.json["model"] for reply in replies] == list(names)
    assert {reply.json["usage"]["completion_tokens"] for reply in replies} == {100}
    assert len({reply.choice["text"] for reply in replies}) == 1
    assert client.server.loads[0] == "a"
    assert len(client.server.loads) <= 5, "who waits for one model shares it"


def test_who_waits_for_a_model_has_it_before_it_leaves_again(own_client):
    begun, gate = threading.Event(), threading.Event()

    def slowly(_):
        begun.set()
        assert gate.wait(WAIT)
        return load()

    sources = [ModelSource("a", lambda _: load()), ModelSource("b", slowly)]
    client = own_client(sources=sources)

    async def run():
        asked = asyncio.create_task(client.ask("POST", "/v1/models/load", json={"model": "b"}))
        await asyncio.to_thread(begun.wait, WAIT)
        leaves = asyncio.create_task(client.ask("POST", "/v1/models/unload", json={"model": "b"}))
        for _ in range(50):  # until it waits for the other
            await asyncio.sleep(0)
        gate.set()
        return await asyncio.wait_for(asyncio.gather(asked, leaves), WAIT)

    loaded, unloaded = asyncio.run(run())
    assert loaded.json["entropix"]["loaded"]
    assert not unloaded.json["entropix"]["loaded"]


def test_models_answer_at_the_same_time_as_each_alone(several):
    client = several(fits=3)
    alone = client.chat(model="a", seed=3).choice["message"]

    async def run():
        body = {"messages": [{"role": "user", "content": "The quick brown fox"}]}
        body |= {"max_tokens": 8, "seed": 3}
        asked = [body | {"model": name} for name in "abc" * 3]
        return await asyncio.gather(
            *(client.ask("POST", "/v1/chat/completions", json=one) for one in asked)
        )

    assert all(reply.choice["message"] == alone for reply in asyncio.run(run()))


def test_a_model_that_cannot_be_loaded_says_so_without_paths(own_client, caplog):
    def fail(_):
        raise WeightsError("/secret/path: the weights cannot be read")

    sources = [ModelSource("good", lambda _: load()), ModelSource("bad", fail)]
    client = own_client(sources=sources, capacity=Capacity(2, 8, 2**20))
    for _ in range(2):
        reply = client.chat(model="bad")
        assert (reply.status, reply.error["code"]) == (500, "model_not_loaded")
        assert "secret" not in reply.content.decode()
    assert "secret" in caplog.text
    assert client.chat(model="good").status == 200


def test_a_client_that_leaves_while_it_waits_holds_nothing(several):
    client = several()

    async def run():
        body = {"prompt": "x", "max_tokens": 60, **NO_END}
        waiting = asyncio.create_task(client.ask("POST", "/v1/completions", json=body))
        other = asyncio.create_task(
            client.ask("POST", "/v1/completions", json=body | {"model": "b"})
        )
        await asyncio.sleep(0)
        other.cancel()
        third = client.ask("POST", "/v1/completions", json=body | {"model": "c"})
        return await asyncio.gather(waiting, third)

    assert [reply.status for reply in asyncio.run(run())] == [200, 200]
    assert in_memory(client) == {"c"}


def test_texts_survive_that_their_model_leaves_and_the_server_ends(own_client, tmp_path):
    def start():
        sources = [
            ModelSource(name, lambda _: load(), lambda: ONE, identify=lambda name=name: name)
            for name in "ab"
        ]
        capacity = Capacity(2, 8, 2**24, tmp_path, 2**30)
        return own_client(sources=sources, models={"most_bytes": ONE}, capacity=capacity)

    client = start()
    first = client.complete(LONG)
    assert client.complete(LONG, model="b").status == 200
    for _ in range(2):
        again = client.complete(LONG)
        assert cached(again) == len(LONG) - 1
        assert again.choice["text"] == first.choice["text"]
        client.server.batcher.stop()
        client = start()


# ── Finding them ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path, byte_tokenizer):
    """A folder of two models, one of which has adapters."""
    for name in ("base", "other"):
        path = tmp_path / name
        path.mkdir()
        convert.save(make_tiny_model(), byte_tokenizer, path)
    adapters = train(tmp_path / "base", "lora")
    configuration = json.loads((adapters / "adapter_config.json").read_text())
    configuration["model"] = "hub/base"
    (adapters / "adapter_config.json").write_text(json.dumps(configuration))
    return tmp_path


def loading(**options):
    return Loading(Extras(), **options)


def test_models_are_found_by_their_names(folder):
    sources = {source.name: source for source in find_sources(None, [str(folder)], loading())}
    assert sources.keys() == {"base", "other", "adapters"}
    assert sources["adapters"].base == "base"
    assert sources["adapters"].identify() != sources["base"].identify()
    assert sources["other"].measure() > 0
    first = find_sources(str(folder / "other"), [str(folder)], loading())[0]
    assert first.name == "other"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["no/such-model"], ModelNotFoundError),
        (["{}/adapters"], SettingsError),
        (["{}/base", "{}/again/base"], SettingsError),
        (["{}/empty"], ModelNotFoundError),
    ],
)
def test_what_is_no_model_is_refused_before_the_server_listens(folder, given, error, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    (folder / "empty").mkdir()
    (folder / "again").mkdir()
    (folder / "again" / "base").symlink_to(folder / "other")
    with pytest.raises(error) as caught:
        find_sources(None, [one.format(folder) for one in given], loading())
    assert isinstance(caught.value, EntropixError)


def test_adapters_share_the_weights_of_their_base(folder):
    sources = {source.name: source for source in find_sources(None, [str(folder)], loading())}
    base, _ = sources["base"].load(None)
    alone, _ = sources["adapters"].load(None)
    adapted, _ = sources["adapters"].load(base)
    tokens = mx.array([[5, 1, 200, 77, 3]])
    np.testing.assert_array_equal(adapted(tokens).logits, alone(tokens).logits)
    assert not np.array_equal(adapted(tokens).logits, base(tokens).logits)
    own = {id(array) for _, array in tree_flatten(base.parameters())}
    added = [
        array.nbytes for _, array in tree_flatten(adapted.parameters()) if id(array) not in own
    ]
    assert sum(added) < weight_bytes(alone) / 4
