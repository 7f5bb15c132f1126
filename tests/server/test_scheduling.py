"""Requests that share the model: caches, cancels, a full queue, faults and the end."""

import asyncio
import threading
import time

import pytest

from entropix_mlx.api.runner import Runner
from entropix_mlx.server.engine import Capacity, ServedAnswer
from entropix_mlx.server.errors import RequestError
from entropix_mlx.settings import Settings

LONG = (
    "It was a bright cold day in April, and the clocks were striking thirteen; Winston Smith " * 2
)
WAIT = 60


def until(condition):
    """Wait for another thread."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0)


def prompted(max_tokens=8, seed=1, prompt=tuple(range(65, 90))):
    settings = Settings(max_tokens=max_tokens, seed=seed, profile="reference")
    return ServedAnswer(prompt, settings)


async def take(answers):
    """Return the steps and the number of ends of answers."""
    steps, ends = [], 0
    async for _, step in answers:
        if step is None:
            ends += 1
        else:
            steps.append(step)
    return steps, ends


async def begun(answers):
    """Wait for the first step; return what yields the later events."""
    events = aiter(answers)
    await anext(events)
    return events


def cached(reply):
    return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_many_at_once_are_each_what_they_are_alone(own_client):
    engine = own_client(capacity=Capacity(5, 40, 0)).engine
    prompts = [
        prompted(6 + n % 5, seed=n, prompt=[65 + (n * k) % 50 for k in range(4 + 7 * n)])
        for n in range(12)
    ]

    async def run():
        alone = [await take(engine.submit([one])) for one in prompts]
        together = await asyncio.gather(*(take(engine.submit([one])) for one in prompts))
        return alone, together

    alone, together = asyncio.run(run())
    for (steps, _), (others, ends) in zip(alone, together, strict=True):
        assert [step.token for step in steps] == [step.token for step in others]
        assert ends == 1
    assert engine.outstanding == 0


def test_what_was_computed_is_not_computed_again(own_client):
    client = own_client()
    first = client.complete(LONG)
    assert cached(first) == 0
    again = client.complete(LONG)
    assert cached(again) >= len(LONG) - 2  # the last tokens must be computed again
    assert again.choice["text"] == first.choice["text"]
    assert cached(client.complete(LONG[:100] + "!!")) == 100
    assert cached(client.complete("nothing of the kind")) == 0
    tail = client.complete(LONG, prefix=first.choice["text"], n=2)
    assert cached(tail) >= len(LONG)


def test_the_cache_is_bounded_and_can_be_off(own_client):
    client = own_client(capacity=Capacity(2, 8, 0))
    client.complete(LONG)
    assert cached(client.complete(LONG)) == 0
    small = own_client(capacity=Capacity(2, 8, 3 * 10**5))
    for n in range(6):
        small.complete(f"{n} {LONG}")
        assert small.metric("prefix_cache_bytes") <= 3 * 10**5
    assert cached(small.complete(f"5 {LONG}")) > 0
    assert cached(small.complete(f"0 {LONG}")) < 20


def test_a_cancelled_request_ends_at_the_next_token(client, monkeypatch):
    engine, passes = client.engine, []
    advance = Runner.advance
    monkeypatch.setattr(Runner, "advance", lambda self: passes.append(1) or advance(self))

    async def run():
        events = await begun(engine.submit([prompted(200, seed=n) for n in range(6)]))
        await events.aclose()
        return len(passes)

    cancelled_at = asyncio.run(run())
    until(lambda: engine.outstanding == 0)
    assert len(passes) <= cancelled_at + 3


def test_a_full_queue_names_the_time_of_a_retry(own_client):
    client = own_client(capacity=Capacity(1, 2, 0))

    async def run():
        held = [client.engine.submit([prompted(200)]) for _ in range(3)]
        reply = await client.ask("POST", "/v1/completions", json={"prompt": "a"})
        for answers in held:
            answers.cancel.set()
        return reply

    reply = asyncio.run(run())
    assert reply.status == 429
    assert int(reply.headers["retry-after"]) > 0
    assert reply.error["code"] == "queue_full"
    until(lambda: client.engine.outstanding == 0)
    assert client.complete().status == 200


def test_a_failing_pass_ends_its_answers_and_no_others(own_client, monkeypatch, caplog):
    client = own_client()
    engine, advance = client.engine, Runner.advance

    def fail(self):
        monkeypatch.setattr(Runner, "advance", advance)
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr(Runner, "advance", fail)
    reply = client.complete()
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert "secret" not in reply.content.decode()
    assert "secret" in caplog.text
    assert client.complete().status == 200
    assert engine.outstanding == 0


def test_a_server_that_stops_ends_what_runs(own_client):
    client = own_client(capacity=Capacity(1, 8, 0))

    async def run():
        running = await begun(client.engine.submit([prompted(60)]))
        waiting = client.engine.submit([prompted(60)])
        client.engine.drain()
        with pytest.raises(RequestError) as stopped:
            await take(waiting)
        assert stopped.value.status == 503
        reply = await client.ask("POST", "/v1/completions", json={"prompt": "a"})
        assert reply.status == 503
        with pytest.raises(RequestError):
            client.engine.submit([prompted()])
        return 1 + sum([step is not None async for _, step in running])

    assert asyncio.run(run()) == 60


def test_a_server_does_not_wait_for_ever_for_what_it_still_does(own_client):
    engine, goes_on = own_client().engine, threading.Event()
    loading = engine.load(goes_on.wait)
    until(loading.running)
    engine.stop(0.01)
    assert engine.alive
    goes_on.set()
    engine.stop()
    assert not engine.alive


def test_an_interrupted_stream_says_so(own_client):
    client = own_client()
    engine = client.engine

    async def interrupted():
        body = {"prompt": "a", "max_tokens": 200, "stream": True}
        task = asyncio.create_task(client.ask("POST", "/v1/completions", json=body))
        while not client.metric("num_requests_running"):
            await asyncio.sleep(0)
        engine.drain(interrupt=True)
        return await task

    reply = asyncio.run(interrupted())
    assert reply.status == 200
    assert reply.events[-1]["error"]["code"] == "shutting_down"
    engine.stop()
    assert not engine.alive
    assert client.get("/health").status == 503
