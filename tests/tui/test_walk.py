"""Whatever is pressed, pasted and clicked in the chat, at any size: nothing breaks.

FUZZ_TIMES makes the random walks longer, FUZZ_SEED gives others.
"""

import itertools
import os
import random
import string

import pytest
from textual import events
from textual.binding import Binding
from textual.dom import DOMNode
from textual.pilot import OutOfBounds
from textual.widgets import Input

from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.chat.recorded import RecordedSource, Recording, demo_recording
from entropix_mlx.chat.session import ChatSession
from entropix_mlx.chat.store import Store
from entropix_mlx.configuration import Configuration
from entropix_mlx.constraints.constraint import Constraint
from entropix_mlx.extraction.review import Review
from entropix_mlx.tui.app import ChatApp
from entropix_mlx.tui.base import WorkspaceApp
from entropix_mlx.tui.composer.composer import Composer
from entropix_mlx.tui.composer.status import State
from entropix_mlx.tui.review import ReviewApp
from entropix_mlx.tui.transcript.transcript import Transcript
from entropix_mlx.tui.workspace import Workspace
from tests.steps import make_steps
from tests.tui.conftest import idle, make_viewer, ready, running, until
from tests.tui.test_answers import SCHEMA, load_ending
from tests.tui.test_review import ROWS


def keys_of(*classes):
    """Return the keys of some classes of nodes, but for those that end the app."""
    bound = (binding for owner in classes for binding in vars(owner).get("BINDINGS", ()))
    return [
        key
        for binding in bound
        if isinstance(binding, Binding) and binding.action != "quit"
        for key in binding.key.split(",")
    ]


def own_nodes(base=DOMNode):
    """Yield the product's own widgets, screens and apps."""
    for node in base.__subclasses__():
        if node.__module__.startswith("entropix_mlx.tui"):
            yield node
        yield from own_nodes(node)


KEYS = keys_of(ChatApp, Workspace, Composer, Transcript, WorkspaceApp)
ALL_KEYS = sorted({*keys_of(*own_nodes())})


async def asked(pilot):
    await idle(pilot)
    await pilot.press("h", "i", "enter")
    await until(pilot, lambda: ready(pilot.app) and pilot.app.workspace.transcript.last_answer)


async def in_the_tokens(pilot):
    await asked(pilot)
    await pilot.press("tab")


async def answering(pilot):
    await idle(pilot)
    await pilot.press("h", "i", "enter")
    await until(pilot, lambda: pilot.app.status.state is State.GENERATING)


async def loading(pilot):
    pilot.app.status.state = State.LOADING


async def failed(pilot):
    await idle(pilot)
    pilot.app.status.state = State.FAILED


SIZES = [(40, 12), (60, 20), (80, 24), (120, 40), (200, 60)]
STATES = [idle, asked, in_the_tokens, answering, loading, failed]


def recorded(pace=0.0):
    steps = make_steps(40)
    turn = Turn("hi", [Reply(1, steps), Reply(2, steps[:9])])
    return Recording(Conversation(turns=[turn]), pace=pace)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
async def test_every_key_in_every_state(state):
    app = ChatApp(ChatSession(RecordedSource(recorded(0.01 if state is answering else 0.0))))
    async with running(app, SIZES[0]) as pilot:
        await state(pilot)
        focused = app.focused
        for key in KEYS:
            await pilot.press(key)
            while len(app.screen_stack) > 1:
                await pilot.press("escape")
            if focused is not None:
                focused.focus()


TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
MOVES = [
    *("tab", "shift+tab", "escape", "enter", "up", "down", "left", "right", "pageup", "pagedown"),
    *("home", "end", "shift+left", "backspace", "delete", "space", "ctrl+p", "ctrl+c", "ctrl+d"),
    *("a", "h", "f", "n", "r", "y", "1", "slash", "question_mark", "left_square_bracket"),
]
PASTES = [
    "word\n" * 10_000,
    "👩‍👩‍👧 🇩🇪 e\u0301 日本語の文章。" * 20,
    "עברית العربية" * 20,
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\0 no UTF-8: \ufffd",
    "[bold]x[/] [link=y]",
    "/rename " + "x" * 500,
    "@/dev/null",
]


def actions(source, count):
    """Yield what a user may do who understands nothing of it."""
    for _ in range(count):
        kind = source.choices(["press", "paste", "resize", "click"], [90, 3, 4, 3])[0]
        if kind == "press":
            yield kind, source.choice(ALL_KEYS + MOVES)
        elif kind == "paste":
            yield kind, source.choice(PASTES)
        elif kind == "resize":
            any_size = source.randrange(2, 200), source.randrange(2, 60)
            yield kind, source.choice([*SIZES, any_size])
        else:
            yield kind, (source.randrange(200), source.randrange(60))


def played(recording):
    return lambda make_chat, store: ChatApp(ChatSession(RecordedSource(recording())), store)


def several(make_chat, store):
    return make_chat(store=store, answers=3, top_logprobs=8)


def form(make_chat, store):
    constraint = Constraint("json_schema", SCHEMA)
    return make_chat(load_ending, store, constraint=constraint, max_tokens=60, top_logprobs=8)


def viewer(make_chat, store):
    return make_viewer()


def review(make_chat, store):
    texts = {"a.txt": "Ann has [bold]paid", "b.txt": "x" * 50_000}
    return ReviewApp(Review(ROWS, texts, {("b.txt", "name"): ['"Rob']}, store / "decisions"))


APPS = {
    "recorded": played(recorded),
    "demo": played(demo_recording),
    "several": several,
    "form": form,
    "viewer": viewer,
    "review": review,
}


async def act(pilot, kind, given):
    if kind == "press":
        await pilot.press(given)
    elif kind == "resize":
        await pilot.resize_terminal(*given)
    elif kind == "paste":
        pilot.app.post_message(events.Paste(given))
        await pilot.pause()
    else:
        try:
            await pilot.click(offset=given)
        except OutOfBounds:
            return


WALKS = list(itertools.product(APPS, SIZES))
"""Where there is time for them; else every fourth one, which has each app and each size."""


@pytest.mark.parametrize(("make", "size"), WALKS if TIMES > 1 else WALKS[::4], ids=str)
async def test_a_random_walk(make, size, make_chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where shares and saved chats go
    app = APPS[make](make_chat, tmp_path if make == "review" else Store(tmp_path / "chats"))
    async with running(app, size) as pilot:
        for kind, given in actions(random.Random(f"{SEED}/{make}/{size}"), 30 * TIMES):
            if not app.is_running:  # the walk has found the way out
                break
            await act(pilot, kind, given)
        await pilot.press("ctrl+q")
    assert app.return_code == 0


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_nothing_that_is_typed_in_the_tokens_changes_a_file(make_chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('[screen]\ntheme = "nord"\n')
    configuration = Configuration.load(tmp_path / "config.toml")
    app = make_chat(store=Store(tmp_path / "chats"), configuration=configuration)
    source, letters = random.Random(SEED), string.ascii_letters + string.digits + "+-=[]<>{}()?!.,"
    async with running(app) as pilot:
        await asked(pilot)
        await until(pilot, lambda: len(files(tmp_path)) > 1)
        await pilot.press("tab")
        before = files(tmp_path)
        for key in ["cats", "for me", "=", *source.choices(letters, k=60 * TIMES)]:
            await pilot.press(*("space" if letter == " " else letter for letter in key))
            while len(app.screen_stack) > 1:
                await pilot.press("escape")
            app.composer.text = ""
            app.workspace.transcript.focus()
        assert files(tmp_path) == before


async def test_a_dialog_that_another_one_covers_does_not_close_it(make_chat):
    app = make_chat()
    async with running(app) as pilot:
        await pilot.press("ctrl+o")
        dialog = app.screen
        await pilot.press("ctrl+p")
        palette = app.screen
        for _ in range(2):
            dialog.dismiss()  # as by a key that it reads late
            await pilot.pause()
        assert app.screen is palette
        await pilot.press("escape", "escape")
        assert len(app.screen_stack) == 1


async def test_the_palette_outlives_late_clicks_and_letters(make_chat):
    app = make_chat()
    async with running(app, (60, 20)) as pilot:
        await pilot.press("ctrl+p")
        where = {"x": 100, "y": 50, "screen_x": 100, "screen_y": 50}
        none = {"delta_x": 0, "delta_y": 0, "button": 1, "shift": False, "meta": False}
        app.screen.post_message(events.Click(app.screen, **where, **none, ctrl=False))
        await pilot.press("ctrl+p", "x")
        app.screen.query_one(Input).value = "late"
        await pilot.press("escape")
    assert app.return_code in (0, None)
