"""Requests that share the model: caches, cancels, a full queue, faults and the end."""

import asyncio
import threading
import time

import pytest

from entropix_mlx.engine.runner import Runner
from entropix_mlx.server.batching import Capacity
from entropix_mlx.server.openai.errors import RequestError
from entropix_mlx.server.submission import Ended, Failed, Stepped, Submission
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
    """Return a prompt, and how to answer it."""
    return prompt, Settings(max_tokens=max_tokens, seed=seed, profile="reference")


class Reported(list):
    """Events as they come."""

    def __call__(self, events):
        self.extend(events)

    def of(self, kind):
        return [event for event in self if isinstance(event, kind)]

    @property
    def tokens(self):
        return [event.step.token for event in self.of(Stepped)]


def ask(client, *prompts):
    """Return a submission of prompts, whose `report` has the events."""
    submission, batcher = Submission(client.runner, len(prompts), Reported()), client.server.batcher
    batcher.admit(submission)
    batcher.submit(submission, prompts)
    return submission


def cached(reply):
    return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_many_at_once_are_each_what_they_are_alone(own_client):
    client = own_client(capacity=Capacity(5, 40, 0))
    batcher = client.server.batcher
    prompts = [
        prompted(6 + n % 5, seed=n, prompt=[65 + (n * k) % 50 for k in range(4 + 7 * n)])
        for n in range(12)
    ]

    alone = []
    for one in prompts:
        alone.append(ask(client, one).report)
        until(lambda: batcher.outstanding == 0)
    together = [ask(client, one).report for one in prompts]
    until(lambda: batcher.outstanding == 0)
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert all(len(one.of(Ended)) == 1 for one in together)


def test_what_was_computed_is_not_computed_again(own_client):
    client = own_client()
    first = client.complete(LONG)
    assert cached(first) == 0
    again = client.complete(LONG)
    assert cached(again) == len(LONG) - 1  # the last token must be computed again
    assert again.choice["text"] == first.choice["text"]
    assert cached(client.complete(LONG[:100] + "!!")) == 100
    assert cached(client.complete("nothing of the kind")) == 0
    tail = client.complete(LONG, prefix=first.choice["text"], n=2)
    assert cached(tail) >= len(LONG)
    assert client.metric("prefix_cache_texts") > 1


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
    batcher, passes = client.server.batcher, []
    advance = Runner.advance
    monkeypatch.setattr(Runner, "advance", lambda self: passes.append(1) or advance(self))
    submission = ask(client, *(prompted(200, seed=n) for n in range(6)))
    reported = submission.report
    until(lambda: len(reported.of(Stepped)) > 8)
    batcher.withdraw(submission)
    cancelled_at = len(passes)
    until(lambda: batcher.outstanding == 0)
    assert len(passes) <= cancelled_at + 3
    assert len(reported.of(Stepped)) < 200


def test_an_answer_that_nobody_reads_leaves_its_place_to_others(own_client):
    client, behind = own_client(capacity=Capacity(1, 8, 0)), 0
    batcher = client.server.batcher
    submission = Submission(client.runner, 1, Reported(), unread=lambda: behind)
    batcher.admit(submission)
    batcher.submit(submission, [prompted(200)])
    until(lambda: submission.report.of(Stepped))
    behind = 1000
    until(lambda: client.metric("num_requests_running") == 0)
    assert client.complete().status == 200
    assert submission.left
    behind = 0
    until(lambda: not submission.left)
    assert len(submission.report.of(Stepped)) == 200


def test_a_full_queue_names_the_time_of_a_retry(own_client):
    client = own_client(capacity=Capacity(1, 2, 0))
    batcher = client.server.batcher
    submissions = [ask(client, prompted(200)) for _ in range(2)]
    submissions.append(
        Submission(client.runner, 1, Reported())
    )  # whose prompts are not tokenized yet
    batcher.admit(submissions[-1])
    reply = client.complete()
    assert reply.status == 429
    assert int(reply.headers["retry-after"]) > 0
    assert reply.error["code"] == "queue_full"
    for submission in submissions:
        batcher.withdraw(submission)
    until(lambda: batcher.outstanding == 0)
    assert client.complete().status == 200


def test_a_failing_pass_ends_its_answers_and_no_others(own_client, monkeypatch, caplog):
    client = own_client()
    batcher, advance = client.server.batcher, Runner.advance

    def fail(self):
        monkeypatch.setattr(Runner, "advance", advance)
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr(Runner, "advance", fail)
    reply = client.complete()
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert "secret" not in reply.content.decode()
    assert "secret" in caplog.text
    assert client.complete().status == 200
    assert batcher.outstanding == 0


def test_a_server_that_stops_ends_what_runs(own_client):
    client = own_client(capacity=Capacity(1, 8, 0))
    batcher = client.server.batcher
    running = ask(client, prompted(60)).report
    until(lambda: running.of(Stepped))
    waiting = ask(client, prompted(60)).report
    batcher.drain()
    until(lambda: waiting.of(Failed))
    assert client.complete().status == 503
    until(lambda: running.of(Ended))
    assert len(running.of(Stepped)) == 60
    with pytest.raises(RequestError):
        ask(client, prompted())


def test_a_server_does_not_wait_for_ever_for_what_it_still_does(own_client):
    batcher, goes_on = own_client().server.batcher, threading.Event()
    writing = batcher.call(goes_on.wait)
    until(writing.running)
    batcher.stop(0.01)
    assert batcher.alive
    goes_on.set()
    batcher.stop()
    assert not batcher.alive


def test_an_interrupted_stream_says_so(own_client):
    client = own_client()
    batcher = client.server.batcher

    async def interrupted():
        body = {"prompt": "a", "max_tokens": 200, "stream": True}
        task = asyncio.create_task(client.ask("POST", "/v1/completions", json=body))
        while not client.metric("num_requests_running"):
            await asyncio.sleep(0)
        batcher.interrupt()
        return await task

    reply = asyncio.run(interrupted())
    assert reply.status == 200
    assert reply.events[-1]["error"]["code"] == "shutting_down"
    batcher.stop()
    assert not batcher.alive
    assert client.get("/health").status == 503
