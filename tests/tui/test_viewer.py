"""A trace on the screen: nothing breaks it, keys walk over it, thresholds recolour it."""

import subprocess
from dataclasses import replace

import pytest
from textual.widgets import ContentSwitcher, Markdown, Static
from textual.widgets._toast import Toast

from entropix_mlx import Profile
from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.palette import printable
from entropix_mlx.step import Origin, Strategy
from tests.tui.conftest import AWKWARD, drive, make_step, make_viewer, notices
from tui.composer.key_bar import KeyBar
from tui.screens.help import HelpScreen
from tui.transcript.answer import AnswerView
from tui.transcript.token_block import TokenBlock
from tui.viewer import ViewerApp


def shown(app) -> str:
    return "".join(block.visual.plain for block in app.query(TokenBlock))


def test_tokens_are_text_and_never_markup():
    app = make_viewer()

    async def scenario(pilot):
        text = shown(app)
        for token in AWKWARD:
            assert printable(token).strip("\n") in text
        assert "⟦" in text, "what was inserted is marked"
        assert "⟨" in text, "so is what came from a branch"
        assert "[keeper]" in str(app.query_one(".question", Static).visual)

    drive(app, scenario)


def test_keys_walk_over_the_tokens():
    app = make_viewer()

    async def scenario(pilot):
        side = app.query_one("#pages", ContentSwitcher)
        assert side.current == "gauges"
        await pilot.press("left")
        assert app.workspace.transcript.cursor == 59
        await pilot.press("left", "left", "right")
        assert app.workspace.transcript.cursor == 58
        assert side.current == "inspector"
        await pilot.press("home")
        assert app.workspace.transcript.cursor == 0
        assert app.workspace.inspector.alternative.token == 100
        await pilot.press("down", "down")
        assert app.workspace.inspector.alternative.token == 102
        await pilot.resize_terminal(120, 14)
        await pilot.pause()
        await pilot.press("pagedown")
        assert app.workspace.inspector.scroll_y > 0
        await pilot.press("up", "f")
        assert app.workspace.inspector.alternative.token == 101
        await pilot.press("escape")
        assert app.workspace.transcript.cursor is None
        assert side.current == "gauges"

    drive(app, scenario)


def test_a_key_goes_to_what_stands_out():
    strategies = {3: Strategy.BRANCH, 6: Strategy.RESAMPLE, 7: Strategy.RESAMPLE}
    thought = {8: Origin.INSERTED, 9: Origin.INSERTED}
    steps = [
        make_step(
            n, f"word{n} ", strategies.get(n, Strategy.THINK if n in thought else Strategy.ADAPTIVE)
        )
        for n in range(12)
    ]
    steps = [replace(s, origin=thought.get(s.index, s.origin)) for s in steps]
    turns = [Turn("a", [Reply(1, steps)]), Turn("b", [Reply(1, steps[:5])])]
    app = ViewerApp(Conversation(turns=turns), Profile.load())
    at = app.workspace.transcript

    async def scenario(pilot):
        visited = []
        for key in ["n", "n", "N", "N", "N", "N", "N", "N", "n"]:
            await pilot.press(key)
            visited.append((at.turn, at.cursor))
        assert visited == [(1, 3), (1, 3), *((0, n) for n in (8, 7, 6, 3, 8, 7, 8))]

    drive(app, scenario)


def test_where_nothing_stands_out_the_key_is_not_named_and_says_why():
    app = make_viewer([make_step(n, "word ") for n in range(5)])

    async def scenario(pilot):
        assert "Forks" not in [binding.description for binding in app.query_one(KeyBar).shown]
        await pilot.press("n")
        assert "no fork" in notices(app)
        assert app.workspace.transcript.cursor is None

    drive(app, scenario)


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_inspector_says_how_to_go_another_way(goes_on):
    app = make_viewer()
    inspector = app.workspace.inspector

    def told() -> str:
        parts = ("alternatives", "branch")
        return "\n".join(str(app.query_one(f"#inspector-{name}", Static).visual) for name in parts)

    async def scenario(pilot):
        assert not inspector.goes_on, "a trace has no model"
        inspector.goes_on = goes_on
        await pilot.press("home", *["right"] * 14)
        assert ("choose another way" in told()) == goes_on
        await pilot.press("down")
        assert ("f goes on this way" in told()) == goes_on
        assert ("↓ selects one that was left" in told()) == goes_on
        await pilot.press("down", "down", "down")
        assert told().rstrip().endswith("f goes on this way") == goes_on

    drive(app, scenario)


def test_a_click_points_at_a_token():
    app = make_viewer([make_step(n, f"word{n} ") for n in range(5)])

    async def scenario(pilot):
        await pilot.click(TokenBlock, offset=(13, 0))
        assert app.workspace.transcript.cursor == 2
        await pilot.hover(TokenBlock, offset=(1, 0))
        await pilot.pause()
        assert app.workspace.transcript.cursor == 0

    drive(app, scenario)


def test_a_click_on_the_strip_goes_to_the_token_there():
    app = make_viewer()

    async def scenario(pilot):
        workspace = app.workspace
        await pilot.click("#strip", offset=(13, 0))
        assert workspace.transcript.cursor == 12, "the line is indented by a cell"
        assert workspace.why.visual.plain.startswith("● argmax")
        await pilot.press("right", "right")
        assert workspace.why.visual.plain.startswith("▲ fork")
        await pilot.click("#strip", offset=(75, 0))
        assert workspace.transcript.cursor == 14, "there is no token"
        await pilot.press("escape")
        assert workspace.why.visual.plain.startswith("stopped · 60 tokens")

    drive(app, scenario)


def test_the_figures_of_attention_unfold():
    app = make_viewer()

    async def scenario(pilot):
        drawn = app.query_one("#attention", Static)
        assert "agreement" not in str(drawn.visual)
        await pilot.press("a")
        assert "agreement" in str(drawn.visual)
        await pilot.press("a")
        assert "agreement" not in str(drawn.visual)

    drive(app, scenario)


def test_thresholds_recolour_at_once():
    app = make_viewer()

    async def scenario(pilot):
        answer = app.workspace.transcript.last_answer
        decided = list(answer.strategies)
        sure = Profile.load().replace({"thresholds": {"low_entropy": 99, "low_varentropy": 99}})
        expected = sum(s.strategy is not Strategy.ARGMAX for s in answer.steps) - 2
        assert answer.reclassify(sure) == expected, "all but the inserted text"
        assert answer.strategies.count(Strategy.ARGMAX) == 58
        assert answer.reclassify(None) == 0
        assert answer.strategies == decided

    drive(app, scenario)


def test_markdown_and_back():
    app = make_viewer()

    async def scenario(pilot):
        await pilot.press("ctrl+t")
        assert len(app.query(Markdown)) == 1
        assert not any(block.display for block in app.query(TokenBlock))
        await pilot.press("ctrl+t")
        assert not app.query(Markdown)
        assert all(block.display for block in app.query(TokenBlock))

    drive(app, scenario)


def test_gauges_fold_away_on_a_narrow_screen():
    app = make_viewer()

    async def scenario(pilot):
        assert app.query_one("#side").size.width == 0
        assert app.query_one("#compact").size.height == 1
        await pilot.press("f2")
        await pilot.pause()
        assert app.query_one("#side").size.width > 30
        await pilot.press("f2")
        await pilot.pause()
        assert app.query_one("#side").size.width == 0
        await pilot.press("left")
        await pilot.pause()
        assert app.query_one("#side").size.width > 30, "the inspector opens by itself"
        await pilot.press("escape")
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert app.query_one("#side").size.width > 30
        await pilot.resize_terminal(20, 6)
        await pilot.pause()

    drive(app, scenario, size=(80, 24))


def test_help_and_glyphs():
    app = make_viewer()

    async def scenario(pilot):
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        await pilot.press("g")
        assert "●" in shown(app)
        await pilot.press("g")
        assert "●" not in shown(app)

    drive(app, scenario)


def test_only_the_last_block_is_drawn_anew():
    view_steps = [make_step(n, f"w{n}\n" if n % 10 == 9 else f"w{n} ") for n in range(950)]
    app = make_viewer(view_steps[:900])

    async def scenario(pilot):
        answer = app.workspace.transcript.last_answer
        blocks = list(app.query(TokenBlock))
        assert len(blocks) == 15
        drawn = []
        original = AnswerView._draw
        answer._draw = lambda number: drawn.append(number) or original(answer, number)
        app.workspace.append(view_steps[900:910])
        app.workspace.append(view_steps[910:915])
        await pilot.pause()
        assert set(drawn) <= {14, 15}
        assert shown(app).count("w") == 915
        for n in range(915, 950):  # one by one, as they come: lines that did not change stay
            app.workspace.append([view_steps[n]])
            await pilot.pause(0.02)
        block = app.query(TokenBlock).last()
        lines = block.visual.wrap(block.size.width)
        y = block.region.y
        rows = app.screen._compositor.render_strips()[y : y + len(lines)]
        assert [row.text[: block.size.width].strip() for row in rows][-4:] == [
            line.plain.strip() for line in lines
        ][-4:]

    drive(app, scenario)


def test_a_block_ends_even_where_no_line_does():
    app = make_viewer([make_step(n, "x") for n in range(1000)])

    async def scenario(pilot):
        assert len(app.query(TokenBlock)) == 3
        await pilot.press("left")
        await pilot.press("home")
        assert app.workspace.transcript.cursor == 0

    drive(app, scenario)


def test_an_empty_trace_is_a_screen():
    app = make_viewer([])

    async def scenario(pilot):
        await pilot.press("left", "right", "f", "y", "g", "ctrl+t", "ctrl+t", "escape", "f2")

    drive(app, scenario)


@pytest.mark.parametrize("on_mac", [True, False])
def test_copying_prefers_pbcopy(monkeypatch, on_mac):
    app = make_viewer()
    copied = []
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/pbcopy" if on_mac else None)
    monkeypatch.setattr(subprocess, "run", lambda _, **given: copied.append(given["input"]))

    async def scenario(pilot):
        await pilot.press("y")
        text = app.workspace.transcript.last_answer.text
        assert copied == [text] if on_mac else app.clipboard == text

    drive(app, scenario)


def answered(*counts: int) -> Conversation:
    """Return a conversation of which each answer has so many tokens."""
    steps = [make_step(n, f"word{n} ") for n in range(9)]
    return Conversation(
        turns=[Turn(f"question {n}", [Reply(n, steps[:count])]) for n, count in enumerate(counts)]
    )


@pytest.mark.parametrize("newest", [0, 5])
def test_a_click_on_an_earlier_answer_points_there(newest):
    app = ViewerApp(answered(5, newest), Profile.load())

    async def scenario(pilot):
        await pilot.click(app.query(TokenBlock).first(), offset=(13, 0))
        await pilot.pause()
        assert app.workspace.transcript.cursor == 2
        assert app.workspace.transcript.turn == 0
        assert app.workspace.strip._pointed == 2
        assert len(app.workspace.strip._tokens) == 5

    drive(app, scenario)


def test_there_is_nothing_to_point_at_in_an_answer_without_tokens():
    app = ViewerApp(answered(5, 0), Profile.load())

    async def scenario(pilot):
        app.workspace.transcript.point(3)
        assert app.workspace.transcript.cursor is None

    drive(app, scenario)


@pytest.mark.parametrize("size", [(120, 40), (60, 16)])
def test_a_notice_covers_neither_the_status_nor_the_footer(size):
    app = make_viewer()

    async def scenario(pilot):
        app.notify("word " * 40, title="what is wrong", timeout=60)
        await pilot.pause(0.5)
        toast = app.screen.query_one(Toast).region
        assert toast.area
        assert not toast.overlaps(app.workspace.status.region)
        assert not toast.overlaps(app.query_one(KeyBar).region)

    drive(app, scenario, size, notifications=True)


def test_the_compact_gauges_of_a_trace_fit():
    app = make_viewer()

    async def scenario(pilot):
        line = app.query_one("#compact", Static)
        for width in (80, 60, 90, 79):
            await pilot.resize_terminal(width, 24)
            await pilot.pause()
            assert width - 22 <= line.visual.cell_length <= line.content_size.width == width - 2

    drive(app, scenario, size=(80, 24))
