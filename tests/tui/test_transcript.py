"""The text: nothing breaks it, keys go from token to token, reasoning folds, the chat is
searched."""

from dataclasses import replace

import pytest
from textual.widgets import Markdown, Static

from entropix_mlx import Profile
from entropix_mlx.chat.finding import Match, search
from entropix_mlx.records import printable
from entropix_mlx.step import Origin, Strategy
from entropix_mlx.tui.screens.find import FindBar
from entropix_mlx.tui.styles import marked
from entropix_mlx.tui.transcript.answer import TokenBlock
from entropix_mlx.tui.viewer import ViewerApp
from tests.steps import AWKWARD, make_step, make_steps
from tests.tui.conftest import idle, make_viewer, ready, running, shown, talk, turns, until, viewing


async def test_tokens_are_text_and_never_markup():
    async with viewing() as (app, pilot):
        text = shown(app)
        for token in AWKWARD:
            assert printable(token).strip("\n") in text
        assert "⟦" in text, "an inserted text is marked"
        assert "⟨" in text, "so is the winning branch"
        assert "[keeper]" in str(app.query_one(".question", Static).visual)
        await pilot.press(*"cccc")
        assert "●" in shown(app)
        await pilot.press("c")
        assert "●" not in shown(app)
        await pilot.press("m")
        assert len(app.query(Markdown)) == 1
        assert not any(block.display for block in app.query(TokenBlock))
        await pilot.press("m")
        assert not app.query(Markdown)
        assert all(block.display for block in app.query(TokenBlock))


def test_marks_stand_where_an_intervention_begins_and_ends():
    inserted = [make_step(n, text, origin=Origin.INSERTED) for n, text in enumerate((" Wait", ","))]
    sampled = make_step(2, " so")
    assert marked(" Wait", inserted[0], sampled, inserted[1], "") == " ⟦Wait"
    assert marked(",", inserted[1], inserted[0], None, "") == ",", "more may come"
    assert marked(",", inserted[1], inserted[0], sampled, "") == ",⟧"
    assert marked(" so", sampled, inserted[1], None, "○") == " ○so"
    assert marked("\n", sampled, sampled, sampled, "○") == "○\n"
    fork = make_step(3, " a", origin=Origin.BRANCH, fork=make_steps()[14].fork)
    assert marked(" a", fork, fork, fork, "") == " ⟨a⟩", "one fork follows another"


async def test_keys_and_the_mouse_go_from_token_to_token():
    async with viewing([make_step(n, f"word{n} ") for n in range(9)]) as (app, pilot):
        workspace = app.workspace
        transcript, inspector = workspace.transcript, workspace.inspector
        side = workspace.query_one
        assert side("#pages").current == "gauges"
        await pilot.press("left")
        assert transcript.cursor == 8
        await pilot.press("left", "left", "right")
        assert transcript.cursor == 7
        assert side("#pages").current == "inspector"
        await pilot.press("home", "down", "down")
        assert inspector.tokens == (102,)
        await pilot.resize_terminal(120, 14)
        await pilot.pause()
        await pilot.press(">")
        assert inspector.scroll_y > 0
        await pilot.press("up", "enter")
        assert inspector.tokens == (101,)
        await pilot.press("escape")
        assert transcript.cursor is None
        assert side("#pages").current == "gauges"
        await pilot.resize_terminal(120, 40)
        await pilot.click(TokenBlock, offset=(13, 0))
        assert transcript.cursor == 2
        await pilot.hover(TokenBlock, offset=(1, 0))
        await pilot.pause()
        assert transcript.cursor == 0


async def test_a_click_on_an_earlier_answer_points_there():
    chat = talk(("one", *(f"word{n} " for n in range(5))), ("two",))
    app = ViewerApp(chat, Profile.load())
    transcript = app.workspace.transcript
    async with running(app) as pilot:
        transcript.point(3)
        assert transcript.cursor is None, "the last answer has no tokens"
        await pilot.click(app.query(TokenBlock).first(), offset=(13, 0))
        await pilot.pause()
        assert (transcript.turn, transcript.cursor) == (0, 2)
        await pilot.press("escape")
        assert (transcript.turn, transcript.cursor) == (1, None)


async def test_a_key_goes_to_the_notable_tokens():
    strategies = {3: Strategy.BRANCH, 6: Strategy.RESAMPLE, 7: Strategy.RESAMPLE}
    steps = [make_step(n, "word ", strategies.get(n, Strategy.ADAPTIVE)) for n in range(12)]
    for n in (8, 9):
        steps[n] = replace(steps[n], strategy=Strategy.THINK, origin=Origin.INSERTED)
    chat = talk(("a",), ("b",))
    chat.turns[0].answer.steps = steps
    chat.turns[1].answer.steps = steps[:5]
    app = ViewerApp(chat, Profile.load())
    at = app.workspace.transcript
    async with running(app) as pilot:
        visited = []
        for key in ["n", "n", "N", "N", "N", "N", "N", "N", "n"]:
            await pilot.press(key)
            visited.append((at.turn, at.cursor))
        assert visited == [(1, 3), (1, 3), *((0, n) for n in (8, 7, 6, 3, 8, 7, 8))]


async def test_only_the_last_block_is_drawn_again():
    steps = [make_step(n, f"w{n}\n" if n % 10 == 9 else f"w{n} ") for n in range(330)]
    async with viewing(steps[:300]) as (app, pilot):
        blocks = list(app.query(TokenBlock))
        before = [block.visual for block in blocks]
        for step in steps[300:]:  # lines that did not change stay
            app.workspace.append([step])
            await pilot.pause()
        assert all(block.visual is old for block, old in zip(blocks[:-1], before[:-1], strict=True))
        assert shown(app).count("w") == 330


async def test_an_empty_trace_is_a_screen():
    async with viewing([]) as (_app, pilot):
        await pilot.press("left", "right", "f", "y", "c", "m", "m", "escape", "f2")
        await pilot.press("space", "space", "escape", "tab")


REASONING = ["<think>", "\n", "Let", " me", " see", "</think>"]


def reasoning_viewer(reasoning=REASONING):
    texts = [*reasoning, "\n\n", "Paris", "."]
    return make_viewer([make_step(n, text) for n, text in enumerate(texts)])


async def test_reasoning_is_folded_until_a_key_a_click_or_the_cursor_unfolds_it():
    app = reasoning_viewer()
    transcript = app.workspace.transcript
    async with running(app) as pilot:
        assert "▸ reasoning: 6 tokens\n" in shown(app)
        assert "me see" not in shown(app)
        assert "Paris." in shown(app)
        assert transcript.last_answer.text.startswith("<think>\nLet me see</think>")
        await pilot.press("t")
        unfolded = "▾ reasoning: 6 tokens\n<think>\nLet me see</think>\n\nParis."
        assert unfolded in shown(app)
        await pilot.press("t")
        assert "me see" not in shown(app)
        block = app.query(TokenBlock).first()
        for seen in (True, False):
            await pilot.click(block, offset=(4, 0))
            assert ("me see" in shown(app)) is seen
            assert transcript.cursor is None
        await pilot.press("left")
        assert "me see" not in shown(app)
        await pilot.press("left", "left", "left")
        assert transcript.cursor == 5
        assert "me see" in shown(app)
        await pilot.press("right")
        assert "me see" not in shown(app)


async def test_reasoning_grows():
    async with viewing([make_step(0, "<think>")]) as (app, pilot):
        assert shown(app) == "▸ reasoning … 1 token"
        # More than a block: those that are folded as a whole take no line.
        app.workspace.append([make_step(n, "hm\n") for n in range(1, 200)])
        await pilot.pause()
        assert shown(app).rstrip() == "▸ reasoning … 200 tokens"
        app.workspace.append([make_step(200, "</think>"), make_step(201, "\n\nParis")])
        await pilot.pause()
        assert shown(app).count("hm") == 0
        assert "▸ reasoning: 201 tokens" in shown(app)
        answer = app.workspace.transcript.last_answer
        assert answer.size.height <= 4
        answer.fold(False)
        await pilot.pause()
        assert shown(app).count("hm") == 199


async def test_a_closing_tag_alone_folds_the_text_before_it():
    async with viewing([make_step(0, "So"), make_step(1, " be it")]) as (app, pilot):
        assert "So be it" in shown(app)
        app.workspace.append([make_step(2, "</think>"), make_step(3, "Paris")])
        await pilot.pause()
        assert "So be it" not in shown(app)
        assert "▸ reasoning: 3 tokens\nParis" in shown(app)


def test_matches_of_a_search():
    chat = talk(("Cats?", " Cat", "s", " purr, c", "ats"), ("And?", "no"))
    assert search(chat, "cats") == [Match(0, None), Match(0, 0), Match(0, 2)]
    assert search(chat, "CATS PURR") == [Match(0, 0)]
    assert search(chat, "and") == [Match(1, None)]
    assert search(chat, "") == search(chat, "dog") == []


async def test_the_chat_is_searched(make_chat):
    app = make_chat()
    chat = talk(
        ("Cats?", " Cat", "s", " purr"),
        ("And dogs?", " The", " cats", " sleep\n", "```\na\n```\nor\n", "```python\nb = 1\nc\n```"),
    )
    transcript = app.workspace.transcript

    def place():
        return transcript.turn, transcript.cursor

    async with running(app) as pilot:
        await idle(pilot)
        app.link.submit(lambda session, _: session.resume(chat))
        await until(pilot, lambda: ready(app) and turns(app))
        await pilot.press("ctrl+f", *"cats")
        assert isinstance(app.screen, FindBar)
        assert place() == (1, 1), "the last place first"
        await pilot.press("up")
        assert place() == (0, 0)
        await pilot.press("up")
        assert transcript.cursor is None, "a question"
        await pilot.press("enter", "ctrl+f")
        assert place() == (1, 1)
        await pilot.press("x", "down", "escape")
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize("on_mac", [True, False])
async def test_copying_prefers_pbcopy(monkeypatch, on_mac):
    app = make_viewer()
    copied = []
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/pbcopy" if on_mac else None)
    monkeypatch.setattr("subprocess.run", lambda _, **given: copied.append(given["input"]))
    async with running(app) as pilot:
        await pilot.press("y")
        text = app.workspace.transcript.last_answer.text
        assert copied == [text] if on_mac else app.clipboard == text


async def test_a_key_changes_what_the_colours_show():
    certain = {"entropy": 0.0, "varentropy": 0.0}
    probable, unlikely = (
        make_step(0, "sure ", strategy=Strategy.ARGMAX, logprob=-0.01, **certain),
        make_step(1, "odd ", strategy=Strategy.ARGMAX, logprob=-7.0, **certain),
    )
    app = make_viewer([probable, unlikely])

    def styles():
        block = app.query_one(TokenBlock)
        return [(span.style.foreground, span.style.underline) for span in block.visual.spans]

    async with running(app, (120, 40)) as pilot:
        await pilot.press("tab")
        app.workspace.transcript.point(None)
        await pilot.pause()
        by_strategy = styles()
        assert by_strategy[0] == by_strategy[1]
        await pilot.press("c")
        await pilot.pause()
        assert styles()[0] == (None, None)
        assert styles()[1][0] is not None
        assert styles()[1][1], "it differs without a colour too"
        app.workspace.preview(Profile.load("reference"))
        assert styles() == by_strategy, "thresholds that are tried out show strategies"
        app.workspace.preview(None)
        await pilot.press("c")
        await pilot.pause()
        assert styles() == [(None, None)] * 2
        await pilot.press("c", "c", "c")
        await pilot.pause()
        assert styles() == by_strategy
