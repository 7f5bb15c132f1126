"""A server in this process, with a tiny random model, and a client without a socket."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.server.access import Access
from entropix_mlx.server.app import Server, make_app
from entropix_mlx.server.engine import Capacity, ServingEngine
from entropix_mlx.server.listening import Listener, bind
from entropix_mlx.server.metrics import ServerMetrics
from entropix_mlx.server.models import Models, ModelSource
from entropix_mlx.settings import Settings
from tests.conftest import make_byte_tokenizer, make_tiny_model


def load():
    """Return what the server answers with; without an end-of-text token, lengths are certain."""
    tokenizer = make_byte_tokenizer()
    tokenizer._eos_token_ids = set()
    return make_tiny_model(), tokenizer


@dataclass
class Reply:
    status: int
    headers: Any
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def choice(self) -> Any:
        return self.json["choices"][0]

    @property
    def events(self) -> list[Any]:
        """The server-sent events; the last one must say that they are all."""
        pieces = self.content.decode().split("\n\n")
        assert pieces[-2:] == ["data: [DONE]", ""]
        return [json.loads(piece.removeprefix("data: ")) for piece in pieces[:-2]]


@dataclass
class Client:
    """Asks an application without a socket."""

    server: Server
    app: Any = field(init=False)

    def __post_init__(self):
        self.app = make_app(self.server)

    def with_(self, **changes):
        """Return a client of the same model with other parts around it."""
        return Client(replace(self.server, **changes))

    async def ask(self, method, path, **more) -> Reply:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.request(method, path, **more)
        return Reply(response.status_code, response.headers, response.content)

    def get(self, path, **more) -> Reply:
        return asyncio.run(self.ask("GET", path, **more))

    def post(self, path, **more) -> Reply:
        return asyncio.run(self.ask("POST", path, **more))

    def chat(self, text="The quick brown fox", **body) -> Reply:
        messages = [{"role": "user", "content": text}]
        given = {"messages": messages, "max_tokens": 8, "seed": 1} | body
        return self.post("/v1/chat/completions", json=given)

    def complete(self, prompt="The quick brown fox", **body) -> Reply:
        given = {"prompt": prompt, "max_tokens": 8, "seed": 1} | body
        return self.post("/v1/completions", json=given)

    @property
    def engine(self):
        return self.server.engine

    @property
    def loaded(self):
        return self.server.models.loaded

    def metric(self, name) -> float:
        lines = self.engine.metrics.text().splitlines()
        values = [line.split()[1] for line in lines if line.startswith(f"entropix_{name} ")]
        return float(values[0]) if values else 0.0


def make_server(capacity=None, settings=None, **more) -> Server:
    engine = ServingEngine(capacity or Capacity(4, 32, 2**24), ServerMetrics())
    given = settings or Settings(max_tokens=16, profile=Profile.load())
    sources = more.get("sources") or [ModelSource("tiny", more.get("load", load))]
    models = Models(sources, engine, given)
    return Server(models, engine, more.get("access", Access()))


@pytest.fixture(scope="package")
def client():
    made = Client(make_server())
    yield made
    made.engine.stop()
    assert made.engine.outstanding == 0


@pytest.fixture
def own_client():
    """Return what makes a client with a server of its own."""
    made = []

    def make(**options):
        made.append(Client(make_server(**options)))
        return made[-1]

    yield make
    for one in made:
        one.engine.stop()


@pytest.fixture
def listener(own_client):
    """A server with a key, on a real socket of this process."""
    served = own_client(access=Access("key")).server
    bound = bind("127.0.0.1", 0)
    bound.listen()
    made = Listener(served)
    made.metrics = served.engine.metrics
    made.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    thread = threading.Thread(target=made.run, kwargs={"sockets": [bound]})
    thread.start()
    yield made
    made.should_exit = True
    thread.join()


@pytest.fixture
def url(listener):
    return listener.url
