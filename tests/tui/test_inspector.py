"""The inspector and the line that explains: decisions, alternatives, branches, endings."""

from dataclasses import replace

import pytest

from entropix_mlx import Profile
from entropix_mlx.records import printable
from entropix_mlx.step import Strategy
from entropix_mlx.summary import Summary
from entropix_mlx.traces.explain import explain
from entropix_mlx.tui.inspector.inspector import draw_branches, draw_decision
from entropix_mlx.tui.inspector.why import draw_ending, draw_leader, draw_why, places_hint
from tests.steps import make_step, make_steps
from tests.tui.conftest import chatting, make_viewer, running, until, viewing

REFERENCE = Profile.load()


def test_the_inspector_shows_every_condition_of_each_strategy():
    step = make_step(3, "x", Strategy.BRANCH, entropy=4.0, varentropy=6.5)
    drawn = draw_decision(step, REFERENCE).plain
    assert "▲ branch   ✓ H 4.00 < 5.00 (1.00)" in drawn
    assert "✓ V 6.50 > 5.00 (1.50)" in drawn
    assert "◆ think    ✓ H 4.00 > 3.00 (1.00)" in drawn
    assert "✗ V 6.50 ≮ 0.10 (6.40)" in drawn
    assert "T 0.70 " in drawn
    assert "○ adaptive ✓ where no other fits" in drawn
    sampled = draw_decision(make_step(0, "x", Strategy.SAMPLE), REFERENCE).plain
    assert "not decided by thresholds" in sampled
    assert "not decided by thresholds" in draw_decision(step, None).plain
    other = make_step(0, "x", Strategy.RESAMPLE, entropy=0.0)
    assert "other thresholds" in draw_decision(other, REFERENCE).plain


def test_the_line_that_explains_drops_the_parts_that_do_not_fit():
    step = make_step(3, "x", entropy=4.0, varentropy=6.5, margin=0.4)
    why = explain(REFERENCE.replace({"thresholds": {"branch_max_margin": 0.1}}), step)
    assert draw_why(why, 80).plain == "○ adaptive, T 0.67 → 0.70; nearly ■: H 4.00 < 5.00"
    assert draw_why(why, 40).plain == "○ adaptive; nearly ■: H 4.00 < 5.00"
    assert draw_why(why, 24).plain == "○ adaptive"
    fork = replace(step, strategy=Strategy.BRANCH, margin=0.04, fork=make_steps()[14].fork)
    why = explain(REFERENCE, fork)
    reasons = "▲ fork: H 4.00 < 5.00 ✓ V 6.50 > 5.00 ✓ margin 0.04 < 1.00 ✓"
    assert draw_why(why, 150).plain.startswith(f"{reasons} → ")
    assert draw_why(why, 76).plain == reasons, "the reasons come before the outcome"
    assert draw_why(why, 56).plain == "▲ fork: H 4.00<5.00 V 6.50>5.00 margin 0.04<1.00"


def test_the_end_of_an_answer():
    steps = [*make_steps(), make_step(60, ".", finish_reason="stop")]

    def ending(width, hint="3 unsure places · Tab"):
        return draw_ending(Summary.of(steps), 7, hint, width).plain

    assert ending(100).startswith("end of text · 61 tokens · seed 7 · 1 fork · ")
    for width in (100, 50, 30):
        assert ending(width).endswith("3 unsure places · Tab")
        assert len(ending(width)) <= width
    assert ending(48) == "end of text · 61 tokens · 3 unsure places · Tab"
    steps[-1] = replace(steps[-1], finish_reason="length")
    assert ending(60).startswith("token limit · 61")
    steps[-1] = replace(steps[-1], finish_reason="stop", stopped="loop")
    assert not ending(60).startswith("end of text")
    assert places_hint(1, "Tab") == "1 unsure place · Tab"
    assert places_hint(0, "n") == "n: why?"


def test_the_branches_of_a_fork_are_a_tree():
    fork = make_steps()[14].fork
    drawn = draw_branches(fork, 34).plain
    assert drawn.startswith("▲ 3 branches compared, chosen by score")
    assert "nats/token" in drawn
    assert "├✓+0.50±0.25  branch [1] here." in drawn
    assert drawn.count("  branch") == 3
    assert "▸" not in drawn
    long = replace(fork.branches[2], text="word " * 20)
    chosen = replace(fork, branches=(*fork.branches[:2], long))
    assert "word " * 20 in draw_branches(chosen, 30, long).plain, "the selected one is whole"
    assert "word " * 20 not in draw_branches(chosen, 30).plain
    assert "[1]" in draw_leader(fork).plain
    running = draw_branches(chosen, 30, running=True).plain
    assert running.startswith("▲ 3 branches, token 2")
    assert running.endswith(("word " * 20)[-10:])


@pytest.mark.parametrize("has_model", [True, False])
async def test_the_inspector_says_how_to_continue_with_an_alternative(has_model):
    app = make_viewer()
    inspector = app.workspace.inspector

    def text() -> str:
        return str(inspector.page.visual)

    async with running(app) as pilot:
        assert not inspector.has_model, "a trace has none"
        inspector.has_model = has_model
        await pilot.press("home", *["right"] * 14)
        assert ("↑ ↓ choose" in text()) == has_model
        await pilot.press("down")
        assert ("Enter: continue with it" in text()) == has_model
        assert ("↓ selects another branch" in text()) == has_model
        await pilot.press("down", "down", "down")
        assert ("Enter: continue with it" in text()) == has_model


async def test_the_line_follows_the_cursor():
    async with viewing() as (app, pilot):
        why = app.workspace.why
        await pilot.press("home", *["right"] * 12)
        assert why.visual.plain.startswith("● argmax")
        await pilot.press("right", "right")
        assert why.visual.plain.startswith("▲ fork")
        await pilot.press("escape")
        assert why.visual.plain.startswith("stopped · 60 tokens")


async def test_a_key_shows_what_a_token_was_drawn_from(make_chat):
    async with chatting(make_chat, "hi", sampler="top_p", top_k=2, temperature=2.0) as (app, pilot):
        await pilot.press("tab", "home", "b")
        page = app.workspace.inspector.page
        await until(pilot, lambda: "→ drawn from" in str(page.visual))
        shown = str(page.visual)
        assert shown.count("✗ cut") == 2, "4 are listed, of which top-k leaves 2"
        assert "top-k 2 cuts" in shown
        await pilot.press("right")
        await until(pilot, lambda: "✗ cut" not in str(page.visual))


def underlined(widget) -> list[str]:
    """Return what is underlined in a widget's text, which is short enough for it."""
    content = widget.visual
    return [
        content.plain[s.start : s.end] for s in content.spans if getattr(s.style, "underline", 0)
    ]


async def test_a_key_shades_what_a_token_looked_at(make_chat):
    async with chatting(make_chat, "the quick brown fox", max_tokens=12) as (app, pilot):
        await pilot.press("tab", "home", *["right"] * 8, "c", "c", "v")
        inspector, turn = app.workspace.inspector, app.workspace.transcript.children[-1]
        await until(pilot, lambda: inspector.attention is not None)
        read, shares = inspector.attention, inspector.shares
        largest = sorted(range(1, len(shares)), key=lambda n: -shares[n])[:3]
        for index in largest:
            assert f"{shares[index]:6.1%}" in str(inspector.page.visual)
        begin = "".join(read.texts).index("the q")
        visible = {*range(begin, begin + len("the quick brown fox")), *range(read.prompt, 99)}
        marked = underlined(turn.query_one(".question")) + underlined(turn.answer.children[0])
        expected = [read.texts[n] for n in sorted(visible.intersection(largest))]
        assert [text for text in marked if text] == [printable(t) for t in expected if t] != []
        assert "3 layers, 4 heads" in str(inspector.page.visual)
        await pilot.press("left")
        assert "looked at most" not in str(inspector.page.visual)
        assert not underlined(turn.query_one(".question"))
        await pilot.press("escape", "v")
    viewer = make_viewer()
    async with running(viewer) as pilot:
        await pilot.press("home", "v")
        assert viewer.workspace.inspector.attention is None
