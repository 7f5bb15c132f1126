"""Keys scroll the text from everywhere, and the newest token is found again."""

import pytest

from entropix_mlx.tui.transcript.transcript import Newest
from tests.tui.conftest import chatting, idle, send, until


def tokens_in_sight(app):
    return {
        segment.style.meta.get("step")
        for strip in app.screen._compositor.render_strips()
        for segment in strip
        if segment.style is not None and segment.style.meta
    }


@pytest.mark.parametrize("inside", [False, True], ids=["field", "tokens"])
async def test_page_keys_scroll_the_text(inside, make_chat):
    async with chatting(make_chat, "hi", "hello", size=(40, 12), max_tokens=150) as (app, pilot):
        if inside:
            await pilot.press("tab", "ctrl+e")
        transcript, newest = app.workspace.transcript, app.query_one(Newest)
        await until(pilot, lambda: transcript.scroll_y >= transcript.max_scroll_y - 1 > 0)
        assert not newest.display
        await pilot.press("pageup", "pageup")
        await until(pilot, lambda: transcript.scroll_y < transcript.max_scroll_y and newest.display)
        await pilot.press("ctrl+end")
        await until(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y)
        assert not newest.display


async def test_text_that_was_scrolled_up_stays_while_more_arrives(make_chat):
    async with chatting(make_chat, size=(40, 12), max_tokens=2000) as (app, pilot):
        await send(pilot, "hi")
        transcript = app.workspace.transcript
        await until(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y > 12)
        await pilot.press("pageup")
        place, end = transcript.scroll_y, transcript.max_scroll_y
        await until(pilot, lambda: transcript.max_scroll_y > end + 4)
        assert transcript.scroll_y == place
        assert app.query_one(Newest).display
        await pilot.click(Newest)
        await until(pilot, lambda: transcript.scroll_y > end)
        await pilot.press("escape")
        await idle(pilot)


async def test_the_token_under_the_cursor_is_in_sight(make_chat):
    async with chatting(make_chat, "hi", size=(40, 12), max_tokens=260) as (app, pilot):
        transcript = app.workspace.transcript
        await until(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y > 0)
        await pilot.press("tab")
        for keys in (["home"], ["end"], ["left"] * 90, ["left"] * 90):
            await pilot.press(*keys)
            place = transcript.cursor
            await until(pilot, lambda place=place: place in tokens_in_sight(app))
