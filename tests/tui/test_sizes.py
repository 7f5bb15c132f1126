"""Terminals of every size: nothing breaks, whatever is shown, and who gets the room."""

import pytest

from entropix_mlx.tui.drawing import Drawn
from entropix_mlx.tui.screens.tuning.tune import TuneScreen
from tests.tui.conftest import chatting, until, viewing


async def test_gauges_are_as_high_as_their_lines_after_any_resize():
    async with viewing(size=(80, 24)) as (app, pilot):
        await pilot.press("f2")
        gauges = app.query_one("#gauges")
        parts = list(gauges.query(Drawn))
        assert len(parts) == 2

        def fitting() -> bool:
            return all(part.size.height == len(str(part.visual).split("\n")) for part in parts)

        for size in [(60, 20), (100, 30), (36, 12), (120, 24), (80, 40), (200, 60), (100, 24)]:
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: fitting() or not gauges.size.width, 3)


async def test_a_tiny_terminal_says_so_and_loses_nothing(make_chat):
    async with chatting(make_chat, size=(20, 5)) as (app, pilot):
        sentence = app.query_one("#too-small")
        await until(pilot, lambda: sentence.region.height == 5)
        await pilot.press(*"abc")
        await pilot.resize_terminal(40, 12)
        await until(pilot, lambda: not sentence.display)
        assert app.composer.text == "abc"


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 60)], ids=str)
async def test_the_settings_cover_nothing_of_the_text(size, make_chat):
    async with chatting(make_chat, "hi", size=size) as (app, pilot):
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, TuneScreen))
        await pilot.pause()
        assert not app.screen.query_one("#tune").region.overlaps(app.workspace.transcript.region)
        focused = app.focused
        await pilot.press("down")
        assert app.focused is not focused
        await pilot.press("escape")
        await until(pilot, lambda: not app.workspace.has_class("-tuning"))
