"""The connections between ranks, all of them in this process."""

from __future__ import annotations

import contextlib
import socket
import threading
from queue import Queue

import pytest

from entropix_mlx.distributed.environment import RankEnvironment
from entropix_mlx.distributed.hub import Hub, Spoke
from entropix_mlx.errors import LostRankError

HELLO = {"versions": {"mlx": "1"}}


def places(size, patience=8.0):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    hosts = ("127.0.0.1",) * size
    return [
        RankEnvironment(rank, size, ("127.0.0.1", port), hosts, patience) for rank in range(size)
    ]


def accept(*_):
    """Take every rank."""


@pytest.fixture
def three():
    """A hub and its two spokes."""
    first, *others = places(3)
    hub, spokes = Hub(first), {}

    def join(place):
        spokes[place.rank] = Spoke.join(place, HELLO)

    threads = [threading.Thread(target=join, args=(place,)) for place in others]
    for thread in threads:
        thread.start()
    hub.join(HELLO, accept)
    for thread in threads:
        thread.join()
    assert [spoke.begin() for spoke in spokes.values()] == [HELLO] * 2
    yield hub, [spokes[place.rank] for place in others]
    hub.close()
    for spoke in spokes.values():
        spoke.close()


def test_orders_reach_all_and_results_say_whose_they_are(three):
    hub, spokes = three
    ends: Queue = Queue()
    hub.watch(lambda rank, error: ends.put((rank, error)))
    for spoke in spokes:
        spoke.watch(ends.put)
    hub.broadcast({"do": "step", "cache": 4})
    assert [next(spoke.orders())["do"] for spoke in spokes] == ["step", "step"]
    spokes[1].send({"answer": 7})
    assert hub.results.get(timeout=5) == (2, {"answer": 7})
    spokes[0].send({"error": "no such model"})
    assert ends.get(timeout=5) == (1, "no such model")
    hub.broadcast({"do": "end", "code": 2})
    assert [ends.get(timeout=5) for _ in spokes] == [{"do": "end", "code": 2}] * 2
    assert list(spokes[0].orders()) == []


def test_a_rank_that_is_gone_is_noticed_by_whom_it_was_connected_to(three):
    hub, spokes = three
    ends: Queue = Queue()
    hub.watch(lambda rank, error: ends.put((rank, error)))
    spokes[1].close()
    assert ends.get(timeout=5) == (2, None)
    assert hub.results.get(timeout=5) == (2, None)
    spokes[0].watch(ends.put)
    hub.close()
    assert None in [ends.get(timeout=5), ends.get(timeout=5)]


def test_ranks_that_do_not_come_are_named():
    named = pytest.raises(LostRankError, match=r"rank 1 \(127.0.0.1\), rank 2 .* did not come")
    with contextlib.closing(Hub(places(3, patience=0.2)[0])) as hub, named:
        hub.join(HELLO, accept)


def test_a_rank_of_another_launch_does_not_take_the_place_of_an_own_one():
    first, second = places(2)
    own, other = ({"host": "here", "launch": launch} | HELLO for launch in (1, 2))
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(contextlib.closing(Hub(first)))
        joining = threading.Thread(target=hub.join, args=(own, accept))
        joining.start()
        stranger, rank = (
            stack.enter_context(contextlib.closing(Spoke.join(second, hello)))
            for hello in (other, own)
        )
        assert rank.begin() == own
        assert stranger.begin() is None
        joining.join()


def test_a_rank_that_is_gone_before_all_have_come_is_named():
    first, second, _ = places(3)
    with contextlib.closing(Hub(first)) as hub:
        joining = threading.Thread(target=lambda: Spoke.join(second, HELLO).close())
        joining.start()
        with pytest.raises(LostRankError, match=r"rank 1 \(127.0.0.1\) was lost"):
            hub.join(HELLO, accept)
        joining.join()


def test_rank_0_that_does_not_answer_is_told():
    with pytest.raises(LostRankError, match=r"rank 0 .* does not answer"):
        Spoke.join(places(2, patience=0.2)[1], HELLO)
