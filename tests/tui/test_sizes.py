"""Terminals of every size: nothing breaks, whatever is shown, and who gets the room."""

import pytest
from textual.widgets._toast import Toast

from entropix_mlx import Profile, Settings
from entropix_mlx.tui.gauges.drawn import Drawn
from entropix_mlx.tui.screens.tuning.tune import TuneScreen
from tests.tui.conftest import ask, idle, make_viewer, running, until


async def test_a_notice_covers_nothing_of_a_dialog():
    app = make_viewer()
    async with running(app, (80, 24), notifications=True) as pilot:
        tuning = TuneScreen(
            Settings(profile=Profile.load()), False, app.workspace.preview, print, print
        )
        await pilot.press("f1")
        for screen in (app.screen, tuning):
            if screen is tuning:
                await app.push_screen(tuning)
            app.notify("the context is full", timeout=60)
            await until(pilot, lambda screen=screen: bool(screen.query(Toast)))
            toasts = [toast.region for toast in screen.query(Toast)]
            parts = [part.region for part in screen.children if part.id == "tune" or part.children]
            dialogs = [region for region in parts if region.height > 7]
            assert dialogs
            assert not any(one.overlaps(other) for one in toasts for other in dialogs)


@pytest.mark.parametrize("size", [(80, 24), (120, 24), (120, 40)], ids=str)
async def test_the_counts_are_in_sight(size):
    app = make_viewer()
    async with running(app, size) as pilot:
        if size[0] < 100:
            await pilot.press("ctrl+g")
        counts, panel = app.query_one("#counts"), app.query_one("#gauges")
        await until(pilot, lambda: counts.size.height >= 6)
        assert panel.region.overlaps(counts.region)


async def test_gauges_are_as_high_as_their_lines_after_any_resize():
    app = make_viewer()
    async with running(app, (80, 24)) as pilot:
        await pilot.press("f2")
        gauges = app.query_one("#gauges")
        parts = list(gauges.query(Drawn))
        assert len(parts) == 2

        def fitting() -> bool:
            return all(part.size.height == len(str(part.visual).split("\n")) for part in parts)

        for size in [(60, 20), (100, 30), (36, 12), (120, 24), (80, 40), (200, 60), (100, 24)]:
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: fitting() or not gauges.size.width, 3)


@pytest.mark.parametrize("size", [(60, 20), (40, 12), (80, 24)], ids=str)
async def test_the_panel_leaves_room_for_the_text(size, make_chat):
    app = make_chat()
    async with running(app, size) as pilot:
        await ask(pilot, "hi")
        await pilot.press("tab")
        assert app.workspace.transcript.size.height >= 2, "with the cursor in the text"
        await pilot.press("tab", "f2")
        await pilot.pause()
        assert app.workspace.transcript.size.height >= 2
        app.composer.focus()
        await pilot.press(*"abc")
        assert app.composer.text == "abc"
        assert app.composer.content_size.height


async def test_a_tiny_terminal_says_so_and_loses_nothing(make_chat):
    app = make_chat()
    async with running(app, (20, 5)) as pilot:
        await idle(pilot)
        sentence = app.query_one("#too-small")
        await until(pilot, lambda: sentence.region.height == 5)
        await pilot.press(*"abc")
        await pilot.resize_terminal(40, 12)
        await until(pilot, lambda: not sentence.display)
        assert app.composer.text == "abc"


@pytest.mark.parametrize("size", [(30, 8), (40, 12), (60, 20), (80, 24)], ids=str)
async def test_small_screens_show_text_first(size, make_chat):
    app = make_chat()
    async with running(app, size) as pilot:
        await ask(pilot, "hi")
        assert app.workspace.transcript.size.height > size[1] // 2
        assert app.composer.size.height == 1
        assert not app.workspace.strip.size.height


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 60)], ids=str)
async def test_the_settings_cover_nothing_of_the_text(size, make_chat):
    app = make_chat()
    async with running(app, size) as pilot:
        await ask(pilot, "hi")
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, TuneScreen))
        await pilot.pause()
        assert not app.screen.query_one("#tune").region.overlaps(app.workspace.transcript.region)
        focused = app.focused
        await pilot.press("down")
        assert app.focused is not focused
        await pilot.press("escape")
        await until(pilot, lambda: not app.workspace.has_class("-tuning"))
