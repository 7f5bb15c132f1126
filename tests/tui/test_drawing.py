"""What the gauges draw: fixed scales, thresholds where they are, every strategy recognisable."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.style import Style

from entropix_mlx import Profile
from entropix_mlx.backends.recorded import demo_profile
from entropix_mlx.palette import LOOKS, printable
from entropix_mlx.profiles.tree import classify
from entropix_mlx.step import Origin, Strategy
from entropix_mlx.summary import Summary
from entropix_mlx.traces.explain import explain
from tests.tui.conftest import make_step, make_steps
from tui.drawing import DIM, bar, scales
from tui.gauges import gauges
from tui.gauges.compact import draw_compact
from tui.gauges.gauge_values import Newest
from tui.gauges.plane import (
    NAMES,
    Background,
    Cloud,
    Map,
    draw_plane,
    regions,
)
from tui.gauges.race import draw_race
from tui.gauges.strip import Cells, draw_strip
from tui.help_text import (
    MEANINGS,
    SHORT_NAMES,
    TOO_WIDE,
    strategies,
    words,
)
from tui.inspector.inspector import (
    draw_alternatives,
    draw_decision,
    draw_ways,
    token_text,
)
from tui.inspector.why import draw_ending, draw_leader, draw_why
from tui.styles import COLOURS, STYLES, marked

REFERENCE = Profile.load()
DEMO = demo_profile()


@pytest.mark.parametrize(
    ("value", "drawn"),
    [(0, "    "), (2, "█   "), (3, "█▌  "), (8, "████"), (99, "███▶"), (float("nan"), "    ")],
)
def test_a_bar_is_full_at_the_end_of_its_scale(value, drawn):
    assert bar(value, 8.0, 4) == drawn


def test_thresholds_stand_where_they_are():
    line = gauges.threshold_line(REFERENCE, "entropy", 40).plain
    assert line[int(3.0 / 8 * 40)] == LOOKS[Strategy.THINK].glyph
    assert line[int(5.0 / 8 * 40)] in LOOKS[Strategy.BRANCH].glyph + LOOKS[Strategy.RESAMPLE].glyph
    moved = REFERENCE.replace({"thresholds": {"think_min_entropy": 6.0}})
    assert gauges.threshold_line(moved, "entropy", 40).plain[30] == LOOKS[Strategy.THINK].glyph


def bars(step=None, profile=REFERENCE) -> str:
    values, style = (step.metrics._asdict(), COLOURS[step.strategy]) if step else ({}, DIM)
    drawn = gauges.draw_bars(values, style, profile, 38)
    return f"{drawn.plain}\n{gauges.draw_attention(values, style, profile, 38).plain}"


def test_every_measurement_has_a_bar_a_number_and_a_unit():
    drawn = bars(make_step(0, "x", entropy=2.5, varentropy=4.25))
    for text in ("2.50 bits", "4.25 bits²", "0.25 of 1", "3.00 bits", "0.010 mean dev.", "0.40 of"):
        assert text in drawn
    assert "– bits" in bars()


@pytest.mark.parametrize("profile", [REFERENCE, DEMO], ids=["reference", "demo"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_the_word_for_h_the_map_and_the_help_say_the_same(profile, margin):
    plane = Map.of(profile, 40, 20)
    found = regions(profile, plane)
    for line, column in itertools.product(range(plane.lines), range(plane.columns)):
        entropy, varentropy = plane.at(column, line)
        step = make_step(0, "x", entropy=entropy, varentropy=varentropy, margin=margin)
        told = words(profile, step.metrics._asdict())
        decided = classify([step], profile)[0]
        assert told["entropy"] == SHORT_NAMES[decided]
        assert NAMES[decided][0].startswith(told["entropy"])
        assert MEANINGS[decided][0].endswith(told["entropy"])
        excused = decided is not found[line][column]
        assert (told["margin"] == TOO_WIDE) is excused, "where the map says something else, why"
    assert words(profile, {}) == {}


@pytest.mark.parametrize(
    ("entropy", "varentropy", "margin", "told"),
    [
        (2.0, 2.0, 0.3, ("sure", "flat")),
        (2.04, 2.0, 0.3, ("in between", "flat")),
        (4.0, 7.0, 0.3, ("in between", "uneven")),
        (4.0, 5.0, 0.3, ("lost", "flat")),
        (4.0, 12.0, 0.1, ("fork", "spiky")),
        (4.0, 12.0, 0.3, ("in between", "spiky", "too wide to fork")),
        (6.0, 18.0, 0.3, ("anything goes", "spiky")),
    ],
)
@pytest.mark.parametrize("width", [32, 38])
def test_h_and_v_are_also_told_in_words(entropy, varentropy, margin, told, width):
    step = make_step(0, "x", entropy=entropy, varentropy=varentropy, margin=margin)
    drawn = gauges.draw_bars(step.metrics._asdict(), Style(), DEMO, width).plain
    assert all(word[: width - 20] in drawn for word in told)
    assert all(len(line) <= width for line in drawn.splitlines())


def test_the_history_does_not_rescale():
    low = [make_step(n, "x", entropy=1.0, varentropy=1.0) for n in range(10)]
    high = make_step(10, "x", entropy=8.0, varentropy=16.0)
    alone = gauges.draw_history(low, REFERENCE, 30).plain.splitlines()
    together = gauges.draw_history([*low, high], REFERENCE, 30).plain.splitlines()
    assert [line[:14] for line in together] == [line[:14].ljust(14) for line in alone]
    assert together[0][14] == together[1][14] == "█"
    assert [line[:4] for line in alone] == ["  8▏", "H 0▏", " 16▏", "V 0▏"]
    assert len(gauges.draw_history(low * 20, REFERENCE, 30).plain.splitlines()[0]) == 30


def drawn_plane(steps, profile=REFERENCE, columns=40, lines=10, **more):
    plane = Map.of(profile, columns, lines)
    strategies = [step.strategy for step in steps]
    cloud = Cloud(plane)
    cloud.add(steps, strategies)
    marks = list(zip(steps, strategies, strict=True))
    return draw_plane(Background.of(profile, plane), cloud, marks, **more)


def test_a_token_stands_at_its_place_in_the_plane():
    step = make_step(0, "x", Strategy.RESAMPLE, entropy=7.9, varentropy=15.9)
    plane = drawn_plane([step])
    assert plane.plain.splitlines()[0][-1] == LOOKS[Strategy.RESAMPLE].glyph
    spans = [span for span in plane.spans if getattr(span.style, "reverse", False)]
    assert len(spans) == 1, "the newest is highlighted"
    corner = drawn_plane([make_step(0, "x", entropy=0, varentropy=0)])
    assert corner.plain.splitlines()[9][4] == LOOKS[Strategy.ADAPTIVE].glyph
    inserted = make_step(0, "x", Strategy.THINK, entropy=0, varentropy=0, origin=Origin.INSERTED)
    assert drawn_plane([inserted]).plain.splitlines()[9][4] == "◇", "hollow"


@pytest.mark.parametrize("profile", [REFERENCE, DEMO], ids=["reference", "demo"])
@pytest.mark.parametrize("size", [(16, 4), (40, 10), (90, 25)])
def test_the_regions_are_those_of_the_decision(profile, size):
    plane = Map.of(profile, *size)
    found = regions(profile, plane)
    for line, column in itertools.product(range(plane.lines), range(plane.columns)):
        entropy, varentropy = plane.at(column, line)
        assert plane.place(entropy, varentropy) == (column, line)
        step = make_step(0, "x", entropy=entropy, varentropy=varentropy, margin=0.0)
        assert [found[line][column]] == classify([step], profile)


def test_regions_have_borders_and_names():
    drawn = drawn_plane([], DEMO, 60, 20).plain
    for name in ("sure", "lost → think", "fork", "anything goes"):
        assert name in drawn
    assert "┐" in drawn
    border = drawn.splitlines()[8][4:]
    assert set(border[1:39]) == {"─"}
    assert "─" not in border[41:], "a border ends with its region"
    assert "any" in drawn_plane([], DEMO, 34, 14).plain, "a shorter name for a small region"


def test_the_token_under_the_cursor_has_a_crosshair():
    steps = make_steps()
    plane = drawn_plane(steps, pointed=(steps[3], steps[3].strategy))
    x, y = Map.of(REFERENCE, 40, 10).place(steps[3].entropy, steps[3].varentropy)
    lines = [line[4:] for line in plane.plain.splitlines()]
    assert {line[x] for n, line in enumerate(lines[:10]) if n != y} == {"│"}
    line = lines[y].replace("in between", "─" * 10)  # names stand above the crosshair
    assert {letter for n, letter in enumerate(line) if n != x} == {"─"}
    assert len([span for span in plane.spans if getattr(span.style, "reverse", False)]) == 1


def test_a_threshold_beyond_the_usual_scale_has_a_place():
    far = REFERENCE.replace({"thresholds": {"resample_min_varentropy": 16.57}})
    glyph = LOOKS[Strategy.RESAMPLE].glyph
    assert scales(REFERENCE)["varentropy"].most == 16
    assert scales(far)["varentropy"].most == 20
    assert gauges.threshold_line(far, "varentropy", 40).plain[int(16.57 / 20 * 40)] == glyph
    assert drawn_plane([], far).plain.startswith(" 20▏")
    endless = REFERENCE.replace({"thresholds": {"resample_min_varentropy": float("inf")}})
    assert scales(endless)["varentropy"].most == 16


def test_what_lies_beyond_a_scale_is_marked():
    step = make_step(0, "x", entropy=9.5, varentropy=40.0)
    assert bars(step).count("▶") == 2
    plane = drawn_plane([step]).plain.splitlines()
    assert plane[0].startswith(" 16▲")
    assert plane[-1].endswith("▶")
    assert "▶" in draw_compact(growing([step]), REFERENCE, 60).plain


def growing(steps) -> Newest:
    newest = Newest()
    newest.add(steps)
    return newest


def cells_of(steps, width) -> Cells:
    cells = Cells(width)
    cells.add((step.entropy, step.strategy) for step in steps)
    return cells


def test_the_strip_shows_the_whole_answer_in_a_line():
    steps = [make_step(n, "x", entropy=0.0) for n in range(100)]
    steps[50] = make_step(50, "x", Strategy.BRANCH, entropy=8.0)
    assert len(draw_strip(cells_of(steps[:10], 30), 8.0).plain) == 10
    cells = cells_of(steps, 30)
    strip = draw_strip(cells, 8.0, cursor=50)
    assert len(strip.plain) == 25, "four tokens a cell"
    assert strip.plain[12] == "█", "what stands out is not averaged away"
    (reversed_span,) = [span for span in strip.spans if getattr(span.style, "reverse", False)]
    assert reversed_span.start == 12
    assert cells.strategies[12] is Strategy.BRANCH
    assert draw_strip(Cells(30), 8.0).plain == ""


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 12))
def test_a_strip_that_grew_is_that_of_the_whole_answer(lengths, width):
    steps = [make_step(n, "x", list(Strategy)[n % 7]) for n in range(sum(lengths))]
    grown, first = Cells(width), 0
    for length in lengths:
        grown.add((step.entropy, step.strategy) for step in steps[first : first + length])
        first += length
    whole = cells_of(steps, width)
    assert (grown.heights, grown.strategies) == (whole.heights, whole.strategies)
    assert len(grown.heights) <= width


@pytest.mark.parametrize("width", [12, 20, 30, 38, 39, 40, 60, 100])
@pytest.mark.parametrize("strategy", [Strategy.ARGMAX, Strategy.THINK_SAMPLE])
def test_the_compact_line_is_not_cut(width, strategy):
    steps = [make_step(0, "x", strategy, entropy=7, varentropy=12)]
    line = draw_compact(growing(steps), REFERENCE, width)
    assert line.cell_length <= max(width, 21)
    assert LOOKS[strategy].glyph in line.plain
    assert "12.00" in line.plain
    line = draw_compact(Newest(steps), REFERENCE, width)
    assert line.cell_length <= max(width, 24)


def test_at_the_end_the_compact_line_tells_means_and_what_the_colours_mean():
    steps = [make_step(n, "x", Strategy.ADAPTIVE, entropy=n) for n in range(3)]
    steps.append(make_step(3, "x", Strategy.BRANCH, entropy=1))
    drawn = [draw_compact(Newest(steps), REFERENCE, width).plain for width in (60, 40, 30)]
    assert all(" 1.00 " in line for line in drawn), "the mean"
    assert drawn[0].endswith("○ in between 75% ▲ fork 25%")
    first = draw_compact(Newest(steps), REFERENCE, 50).plain
    assert first.endswith("○ in between 75% ▲ 25%"), "the name of the largest share comes first"
    greedy = [make_step(n, "x", Strategy.ARGMAX, entropy=6) for n in range(3)]
    assert "sure" not in draw_compact(Newest(greedy), REFERENCE, 90, meant=False).plain
    assert "sure" not in gauges.draw_counts(Newest(greedy).counts, 90, meant=False).plain
    assert drawn[1].endswith("○ 75% ▲ 25%")
    assert drawn[2].endswith("mean")
    assert draw_compact(Newest(), REFERENCE, 60).plain.count("–") == 2


def test_no_line_runs_through_bars_and_points():
    steps = [make_step(0, "x", strategy) for strategy in Strategy]
    drawn = [
        *(gauges.draw_bars({}, COLOURS[step.strategy], REFERENCE, 38) for step in steps),
        gauges.draw_history(steps, REFERENCE, 38),
        drawn_plane(steps),
        draw_strip(cells_of(steps, 38), 8.0),
        draw_compact(growing(steps), REFERENCE, 60),
        draw_compact(Newest(steps), REFERENCE, 90),
    ]
    assert not [span for content in drawn for span in content.spans if span.style.underline]


def test_marks_stand_where_an_intervention_begins_and_ends():
    inserted = [make_step(n, text, origin=Origin.INSERTED) for n, text in enumerate((" Wait", ","))]
    drawn = make_step(2, " so")
    assert marked(" Wait", inserted[0], drawn, inserted[1], "") == " ⟦Wait"
    assert marked(",", inserted[1], inserted[0], None, "") == ",", "more may come"
    assert marked(",", inserted[1], inserted[0], drawn, "") == ",⟧"
    assert marked(" so", drawn, inserted[1], None, "○") == " ○so"
    assert marked("\n", drawn, drawn, drawn, "○") == "○\n"
    fork = make_step(3, " a", origin=Origin.BRANCH, fork=make_steps()[14].fork)
    assert marked(" a", fork, fork, fork, "") == " ⟨a⟩", "one fork follows another"


def test_counts():
    counts = Counter(step.strategy for step in make_steps())
    drawn = gauges.draw_counts(counts, 38).plain
    for strategy, number in counts.items():
        assert f"{strategy}" in drawn
        assert str(number) in drawn


@pytest.mark.parametrize(("width", "told"), [(32, False), (38, True), (80, True)])
def test_counts_say_what_each_strategy_means_where_there_is_room(width, told):
    counts = Counter(dict.fromkeys(Strategy, 1000))
    lines = gauges.draw_counts(counts, width).plain.splitlines()
    assert {len(line) for line in lines} == {width}
    for line, strategy in zip(lines, Strategy, strict=True):
        meaning = SHORT_NAMES.get(strategy)
        assert f"{LOOKS[strategy].glyph} {strategy} " in line
        assert meaning is None or (f" {meaning} " in line) is told


def test_strategies_differ_without_colour():
    attributes = {
        (style.bold, style.italic, style.underline, style.dim) for style in STYLES.values()
    }
    assert len(attributes) == len(Strategy)
    assert all(LOOKS[s].glyph in strategies().plain for s in MEANINGS)


def test_control_characters_become_visible():
    assert printable("a\x1b[31mb\x07\n\t") == "a␛[31mb␇\n\t"
    assert token_text(" a\n") == "␣a⏎"
    assert token_text("") == "∅"


def test_the_inspector_shows_every_condition_of_each_strategy():
    step = make_step(3, "x", Strategy.BRANCH, entropy=4.0, varentropy=6.5)
    drawn = draw_decision(step, REFERENCE).plain
    assert "▲ branch   ✓ H 4.00 < 5.00 (1.00)" in drawn
    assert "✓ V 6.50 > 5.00 (1.50)" in drawn
    assert "◆ think    ✓ H 4.00 > 3.00 (1.00)" in drawn
    assert "✗ V 6.50 ≮ 0.10 (6.40)" in drawn
    assert "T 0.70 " in drawn
    assert "○ adaptive ✓ where no other fits" in drawn
    assert "no thresholds" in draw_decision(make_step(0, "x", Strategy.SAMPLE), REFERENCE).plain
    assert "no thresholds" in draw_decision(step, None).plain
    other = make_step(0, "x", Strategy.RESAMPLE, entropy=0.0)
    assert "other thresholds" in draw_decision(other, REFERENCE).plain


def test_the_line_that_explains_leaves_out_what_does_not_fit():
    step = make_step(3, "x", entropy=4.0, varentropy=6.5, margin=0.4)
    why = explain(REFERENCE.replace({"thresholds": {"branch_max_margin": 0.1}}), step)
    assert draw_why(why, 80).plain == "○ adaptive, T 0.67 → 0.70; nearly ■: H 4.00 < 5.00"
    assert draw_why(why, 40).plain == "○ adaptive; nearly ■: H 4.00 < 5.00"
    assert draw_why(why, 24).plain == "○ adaptive"
    fork = replace(step, strategy=Strategy.BRANCH, margin=0.04, fork=make_steps()[14].fork)
    why = explain(REFERENCE, fork)
    reasons = "▲ fork: H 4.00 < 5.00 ✓ V 6.50 > 5.00 ✓ margin 0.04 < 1.00 ✓"
    assert draw_why(why, 150).plain.startswith(f"{reasons} → comparing 3 branches")
    assert draw_why(why, 76).plain == reasons, "why it was a fork comes before what became of it"
    assert draw_why(why, 56).plain == "▲ fork: H 4.00<5.00 V 6.50>5.00 margin 0.04<1.00"


def test_how_an_answer_ended():
    steps = [*make_steps(), make_step(60, ".", finish_reason="stop")]
    told = draw_ending(Summary.of(steps), 7, "Tab", 60).plain
    assert told.startswith("end of text · 61 tokens · ")
    assert told.endswith("· seed 7 · Tab: why?")
    assert (
        draw_ending(Summary.of(steps), 7, "Tab", 45).plain == "end of text · 61 tokens · Tab: why?"
    )
    assert draw_ending(Summary.of(steps), 7, "Tab", 30).plain == "end of text · 61 tokens"
    stopped = draw_ending(Summary.of(steps[:-1]), None, "← →", 100).plain
    assert stopped.startswith("stopped")
    assert stopped.endswith("· ← →: why these tokens, and other ways")


def test_alternatives_show_their_probability():
    lines = draw_alternatives(make_step(0, "x"), 1, 36).plain.splitlines()
    assert lines[0].startswith(" ✓")
    assert lines[1].startswith("▸ ")
    assert "60.7%" in lines[0]
    assert "not recorded" in draw_alternatives(make_step(0, "x", top_logprobs=()), 0, 36).plain


def test_the_ways_of_a_fork_are_a_tree():
    fork = make_steps()[14].fork
    drawn = draw_ways(fork, None, 30).plain
    assert "├✓+0.50±0.25  way [1] of two." in drawn
    assert drawn.count("  way") == 3
    assert "▸" not in drawn
    long = replace(fork.branches[2], text="word " * 20)
    chosen = replace(fork, branches=(*fork.branches[:2], long))
    assert "word " * 20 in draw_ways(chosen, 2, 30).plain, "what is selected is shown in full"
    assert "word " * 20 not in draw_ways(chosen, None, 30).plain


def test_a_race_shows_who_leads_and_the_end_of_each_way():
    fork = make_steps()[14].fork
    drawn = draw_race(fork, 40).plain.splitlines()
    assert drawn[0] == "▲ following 3 ways, token 2"
    assert draw_race(fork, 20).plain.splitlines()[0] == "▲ 3 ways, token 2"
    assert [line[14] for line in drawn[1:]] == [" ", "▸", " "]
    assert all(len(line) <= 40 for line in draw_race(fork, 24).plain.splitlines()[1:])
    assert "[1]" in draw_leader(fork).plain
