"""The app, driven by Textual's pilot: with recorded steps, or with a tiny model that chats."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from textual._context import active_app
from textual.pilot import Pilot
from textual.widgets import Input

from entropix_mlx import Settings
from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.chat.local import LocalSource
from entropix_mlx.chat.session import ChatSession
from entropix_mlx.step import Step
from entropix_mlx.tui.app import ChatApp
from entropix_mlx.tui.composer.status import State
from entropix_mlx.tui.screens.dialogs import TextDialog
from entropix_mlx.tui.screens.picker import Picker
from entropix_mlx.tui.transcript.answer import TokenBlock
from entropix_mlx.tui.viewer import ViewerApp
from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.steps import make_step, make_trace

QUIET_ROUNDS = 5
"""Rounds of the event loop without a message, after which nothing more is on its way."""


def make_viewer(steps: list[Step] | None = None) -> ViewerApp:
    return ViewerApp.of_trace(make_trace(steps))


def load_tiny():
    """Return a tiny model; called on the app's own thread."""
    tokenizer = make_byte_tokenizer()
    tokenizer._eos_token_ids = set()
    return make_tiny_model(max_position_embeddings=4096), tokenizer


def gated(gate):
    """Return a load that waits until a gate is open."""

    def load():
        gate.wait(10)
        return load_tiny()

    return load


@pytest.fixture
def make_chat():
    def make(load=load_tiny, store=None, configuration=None, **options):
        ask = options.pop("ask", False)
        own = {name: options.pop(name) for name in {"traces", "load_named"} & options.keys()}
        settings = Settings(**{"max_tokens": 12, "seed": 1, "top_logprobs": 4} | options)
        session = ChatSession(LocalSource("tiny", load, **own), settings)
        return ChatApp(session, store, configuration, ask)

    return make


def talk(*pairs) -> Conversation:
    """Return a conversation of questions and the tokens of their answers."""
    return Conversation(
        turns=[
            Turn(question, [Reply(1, [make_step(n, word) for n, word in enumerate(words)])])
            for question, *words in pairs
        ]
    )


async def settle(_min_sleep: float = 0, max_sleep: float = 1) -> None:
    """Wait until no widget has a message left, in place of watching the processor's time.

    Textual's own wait sleeps 20 ms at least, and a whole second while a model computes.
    """
    app = active_app.get()
    quiet, end = 0, time.monotonic() + max_sleep
    while quiet < QUIET_ROUNDS and time.monotonic() < end:
        await asyncio.sleep(0)
        pumps = [app, *(node for screen in app.screen_stack for node in screen.walk_children())]
        idle = all(p.message_queue_size == 0 and not p._next_callbacks for p in pumps)
        idle = idle and app._resize_event is None
        quiet = quiet + 1 if idle else 0


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch) -> None:
    monkeypatch.setattr("textual.app.wait_for_idle", settle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", settle)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem) -> bool | None:
    """Run a test that is a coroutine."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    asyncio.run(
        test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters})
    )
    return True


@asynccontextmanager
async def running(app, size=(120, 40), notifications=False) -> AsyncIterator[Pilot]:
    """Run an app without a terminal."""
    async with app.run_test(size=size, notifications=notifications) as pilot:
        await pilot.pause()
        yield pilot


def drive(app, scenario: Callable[[Pilot], Awaitable[None]], size=(120, 40)) -> None:
    """Run an app, and a scenario on it, in an event loop of its own."""

    async def run() -> None:
        async with running(app, size) as pilot:
            await scenario(pilot)

    asyncio.run(run())


def ready(app: ChatApp) -> bool:
    """Return whether the model is idle."""
    return app.status.state is State.READY


def notices(app: ChatApp) -> str:
    return "\n".join(f"{n.title} {n.message}" for n in app._notifications)


def turns(app: ChatApp) -> list[Turn]:
    return app.workspace.conversation.turns


def answers(app: ChatApp) -> int:
    """Return how many answers the first question has."""
    return len(turns(app)[0].answers)


def shown_steps(app: ChatApp) -> int:
    answer = app.workspace.transcript.last_answer
    return len(answer.steps) if answer else 0


def shown(app) -> str:
    """Return the tokens on the screen."""
    return "\n".join(block.visual.plain for block in app.query(TokenBlock))


def text_of(app, selector: str) -> str:
    """Return the text of a widget of the top screen."""
    return str(app.screen.query_one(selector).visual)


def racing(app) -> bool:
    """Return whether the branches of a fork stand in the place of the bars."""
    return "branches, token" in text_of(app, "#bars")


async def until(pilot, condition: Callable[[], bool], seconds: float = 30) -> None:
    """Let the app go on until something holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0.01)
        if condition():
            await pilot.pause()
            return
    raise AssertionError("it did not come about")


async def idle(pilot) -> None:
    """Wait for the model."""
    await until(pilot, lambda: ready(pilot.app))


async def generating(pilot, steps: int = 1) -> None:
    """Wait until an answer runs and some of it is on screen."""
    app = pilot.app
    await until(pilot, lambda: app.status.state is State.GENERATING and shown_steps(app) >= steps)


async def send(pilot, text: str) -> None:
    """Type a text and send it."""
    await pilot.press(*("space" if c == " " else c for c in text), "enter")


async def ask(pilot, text: str) -> None:
    """Type a question and wait for the end of its answer."""
    app = pilot.app
    asked = len(turns(app))
    await send(pilot, text)
    await until(pilot, lambda: ready(app) and len(turns(app)) > asked)


@asynccontextmanager
async def viewing(steps=None, size=(120, 40)):
    """Show recorded steps."""
    app = make_viewer(steps)
    async with running(app, size) as pilot:
        yield app, pilot


@asynccontextmanager
async def chatting(make_chat, *questions, size=(120, 40), **settings):
    """Run a chat, and ask it some questions once its model is there."""
    app = make_chat(**settings)
    async with running(app, size) as pilot:
        await idle(pilot)
        for question in questions:
            await ask(pilot, question)
        yield app, pilot


async def fill(pilot, text: str) -> None:
    """Answer a text dialog."""
    await until(pilot, lambda: isinstance(pilot.app.screen, TextDialog | Picker))
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await pilot.pause()
