"""The end of the app: it waits for what runs, and not for what cannot be interrupted."""

import threading
import time

import pytest

from entropix_mlx import Session
from entropix_mlx.chat.local import LocalSource
from entropix_mlx.chat.session import ChatSession
from entropix_mlx.tui.app import ChatApp, run_chat
from tests.tui.conftest import chatting, drive, gated, generating, idle, load_tiny, running


@pytest.mark.parametrize("quitting", ["ctrl+q", ""])
async def test_the_end_of_the_app_waits_for_the_model_thread(make_chat, monkeypatch, quitting):
    app = make_chat(max_tokens=3000)
    close = Session.close

    def slow_close(session):
        time.sleep(0.5)
        close(session)

    monkeypatch.setattr(Session, "close", slow_close)
    async with running(app) as pilot:
        await pilot.press("h", "i", "enter")
        await generating(pilot)
        await pilot.press(*filter(None, [quitting]))
    assert not app.link.thread.alive


async def test_the_end_of_the_app_does_not_wait_for_a_model(make_chat):
    gate = threading.Event()
    app = make_chat(gated(gate))
    async with running(app) as pilot:
        began = time.monotonic()
        await pilot.press("ctrl+q")
    took = time.monotonic() - began
    gate.set()
    while app.link.thread.alive:
        time.sleep(0.01)
    assert took < 4


async def test_a_crash_outside_the_event_loop_ends_with_1(make_chat):
    async with chatting(make_chat) as (app, _pilot):
        app.panic("the keyboard is gone")
    assert (app.return_code, app.link.thread.alive) == (1, False)


@pytest.mark.parametrize("loaded", [True, False])
def test_only_a_model_that_loads_is_left_without_the_end_of_the_interpreter(monkeypatch, loaded):
    gate, exits = threading.Event(), []

    async def leave(pilot):
        if loaded:
            await idle(pilot)
        await pilot.press("ctrl+q")

    monkeypatch.setattr(ChatApp, "run", lambda app: drive(app, leave))
    monkeypatch.setattr("os._exit", exits.append)
    run_chat(ChatSession(LocalSource("tiny", load_tiny if loaded else gated(gate))))
    gate.set()
    assert exits == ([] if loaded else [0])
