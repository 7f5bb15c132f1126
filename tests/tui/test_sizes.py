"""Terminals of every size: nothing breaks, whatever is shown there."""

import itertools

import pytest

from tests.tui.conftest import ask, drive, make_viewer, ready, until

SIZES = list(itertools.product((20, 40, 46, 79, 80, 100, 200), (5, 24, 60)))
STARTS = [(20, 5), (40, 10), (46, 20), (80, 24), (200, 60)]


async def visit(pilot):
    """Show what can be shown: the panel or not, the token's page, the help."""
    await pilot.pause()
    await pilot.press("f2")
    await pilot.press("f2")
    await pilot.press("tab", "left", "down", "pagedown", "g")
    await pilot.press("escape", "f1", "escape")
    pilot.app.workspace.transcript.focus()


@pytest.mark.parametrize("size", STARTS)
def test_a_trace_is_shown_at_any_size(size):
    drive(make_viewer(), visit, size)


@pytest.mark.parametrize("size", STARTS)
def test_a_chat_begins_at_any_size(make_chat, size):
    app = make_chat(max_tokens=4)

    async def scenario(pilot):
        await ask(pilot, "hi")
        await visit(pilot)

    drive(app, scenario, size)


def test_a_trace_outlives_any_resizing():
    app = make_viewer()

    async def scenario(pilot):
        for number, size in enumerate(SIZES + SIZES[::-5]):
            await pilot.resize_terminal(*size)
            await pilot.press(["f2", "left", "escape"][number % 3])

    drive(app, scenario)


def test_a_chat_outlives_any_resizing(make_chat):
    app = make_chat(max_tokens=300)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        for number, size in enumerate(SIZES[::-2]):
            await pilot.resize_terminal(*size)
            await pilot.press(["f2", "tab", "left", "escape", "x", "enter"][number % 6])
        await pilot.resize_terminal(120, 40)
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        assert app.workspace.conversation.turns

    drive(app, scenario)
