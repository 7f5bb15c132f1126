"""Who gets the room of a small screen, and what is drawn anew when only a little changes."""

import pytest
from textual.content import Content
from textual.style import Style
from textual.widgets._toast import Toast

from entropix_mlx import Profile, Settings
from entropix_mlx.step import Origin, Strategy
from tests.tui.conftest import ask, drive, make_step, make_steps, make_viewer, ready, until
from tui.gauges.drawn import Drawn, lines_of
from tui.screens.options import OptionsDialog
from tui.screens.tuning.tune import TuneScreen
from tui.screens.tuning.tuning_plane import TuningPlane

RED = Style.parse("red")


def test_a_notice_covers_nothing_of_a_dialog():
    app = make_viewer()

    async def scenario(pilot):
        tuning = TuneScreen(Settings(profile=Profile.load()), False, app.workspace.preview)
        await pilot.press("f1")
        for screen in (app.screen, tuning):
            if screen is tuning:
                await app.push_screen(tuning)
            app.notify("the context is full", timeout=60)
            await until(pilot, lambda screen=screen: bool(screen.query(Toast)))
            toasts = [toast.region for toast in screen.query(Toast)]
            parts = [part.region for part in screen.children if part.id == "tune" or part.children]
            dialogs = [region for region in parts if region.height > 8]
            assert dialogs
            assert not any(one.overlaps(other) for one in toasts for other in dialogs)

    drive(app, scenario, (80, 24), notifications=True)


def test_text_stays_in_sight_while_the_cursor_is_in_it(make_chat):
    app = make_chat(max_tokens=30)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: ready(app) and bool(app.workspace.last_steps))
        await pilot.press("tab")
        assert app.workspace.transcript.size.height >= 2
        await pilot.press("tab", "x")
        assert app.workspace.query_one("#composer").has_focus

    drive(app, scenario, (40, 12))


@pytest.mark.parametrize(("height", "shown"), [(12, False), (24, True)])
def test_the_sliders_have_the_room_before_the_plane(height, shown):
    app = make_viewer()

    async def scenario(pilot):
        tuning = TuneScreen(Settings(profile=Profile.load()), False, app.workspace.preview)
        await app.push_screen(tuning)
        await pilot.pause()
        assert tuning.query_one(TuningPlane).display is shown

    drive(app, scenario, (40, height))


@pytest.mark.parametrize("size", [(80, 24), (120, 24), (120, 40)], ids=str)
def test_the_legend_is_in_sight_beside_the_plane(size):
    app = make_viewer()

    async def scenario(pilot):
        if size[0] < 100:
            await pilot.press("f2")
        counts = app.query_one("#counts")
        await until(pilot, lambda: counts.size.height >= 6)
        assert app.workspace.gauges.region.contains_region(counts.region)

    drive(app, scenario, size)


def test_gauges_are_as_high_as_their_lines_after_any_resize():
    app = make_viewer()

    async def scenario(pilot):
        await pilot.press("f2")
        gauges = app.workspace.gauges
        parts = list(gauges.query(Drawn))
        assert len(parts) == 4

        def fitting() -> bool:
            return all(part.size.height == len(part._lines) for part in parts)

        for size in [(60, 20), (100, 30), (36, 12), (120, 24), (80, 40), (200, 60), (100, 24)]:
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: fitting() or not gauges.size.width, 3)

    drive(app, scenario, (80, 24))


@pytest.mark.parametrize("size", [(60, 20), (40, 14), (80, 24)], ids=str)
def test_the_panel_leaves_room_for_the_text(size, make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("f2")
        await pilot.pause()
        assert app.workspace.transcript.size.height >= 2
        assert not app.workspace.compact.size.height, "the panel shows the same"
        await pilot.press(*"abc")
        assert app.composer.text == "abc"
        assert app.composer.content_size.height

    drive(app, scenario, size)


def test_why_a_token_was_a_fork_is_told_beside_a_narrow_panel():
    async def scenario(pilot):
        await pilot.press("home", *["right"] * 14)
        await pilot.pause()
        told = " ".join(str(app.workspace.why.visual).split())
        assert told.startswith("▲ fork: H ")
        assert "margin" in told
        width = app.workspace.why.content_size.width
        assert len(told) <= 2 * width

    trace = [make_step(n, f" w{n}") for n in range(14)]
    fork = make_step(
        14,
        " fork",
        Strategy.BRANCH,
        entropy=4.1,
        varentropy=12.34,
        margin=0.05,
        origin=Origin.BRANCH,
        fork=make_steps()[14].fork,
    )
    app = make_viewer([*trace, fork])
    drive(app, scenario, (80, 24))


def test_the_end_of_a_text_is_no_riddle():
    app = make_viewer([make_step(0, "x"), make_step(1, "", finish_reason="stop")])

    async def scenario(pilot):
        await pilot.press("end")
        await pilot.pause()
        assert "the end of the text" in str(app.query_one("#inspector-token").visual)

    drive(app, scenario)


def test_an_option_is_explained_in_full_where_its_field_is_short():
    app = make_viewer()

    async def scenario(pilot):
        await app.push_screen(OptionsDialog(Settings()))
        field = app.screen.query_one("#top_p")
        field.focus()
        await pilot.pause()
        assert str(app.screen.query_one("#fault").visual) == field.placeholder

    drive(app, scenario, (40, 20))


def test_an_answer_that_grows_takes_several_lines_at_once():
    app = make_viewer([make_step(0, "one\n")])

    async def scenario(pilot):
        answer = app.workspace.transcript.last_answer
        heights = []
        for number in range(1, 9):
            app.workspace.append([make_step(number, "more\n")])
            await pilot.pause()
            heights.append(answer.size.height)
        assert heights == [4, 4, 4, 8, 8, 8, 8, 12]
        answer.settle()
        await pilot.pause()
        assert answer.size.height == 10
        app.workspace.append([make_step(9, "end", finish_reason="stop")])
        await pilot.pause()
        assert answer.size.height == 10

    drive(app, scenario)


def test_lines_keep_their_styles():
    content = Content.assemble("a", ("b\nc", RED), "\n", "d")
    assert lines_of(content) == [(("a", None), ("b", RED)), (("c", RED),), (("d", None),)]
    with pytest.raises(TypeError, match="not the name of one"):
        lines_of(Content.styled("a", "bold"))


def test_only_lines_that_change_are_drawn_anew(monkeypatch):
    app = make_viewer()

    async def scenario(pilot):
        drawn = Drawn()
        await app.mount(drawn)
        drawn.draw_content(Content("one\ntwo\nthree"))
        await pilot.pause()
        refreshed = []
        monkeypatch.setattr(
            drawn, "refresh", lambda *regions, **how: refreshed.append((regions, how))
        )
        drawn.draw_content(Content("one\n2\nthree"))
        drawn.draw_content(Content("one\n2\nthree"))
        ((region,), how), *others = refreshed
        assert (region.y, region.height, how, others) == (1, 1, {}, [])

    drive(app, scenario)
