"""What the gauges draw: fixed scales, thresholds where they are, every strategy recognisable."""

from collections import Counter

import pytest

from entropix_mlx import Profile
from entropix_mlx.palette import LOOKS, printable
from entropix_mlx.step import Origin, Strategy
from tests.tui.conftest import make_step, make_steps
from tui.drawing import bar, scales
from tui.styles import STYLES, legend, marked
from tui.widgets import gauges
from tui.widgets.compact import draw_compact
from tui.widgets.inspector import draw_alternatives, draw_branch, draw_decision, token_text

REFERENCE = Profile.load()


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


def test_every_measurement_has_a_bar_a_number_and_a_unit():
    drawn = gauges.draw_bars(make_step(0, "x", entropy=2.5, varentropy=4.25), REFERENCE, 38).plain
    for text in ("2.50 bits", "4.25 bits²", "3.00 bits", "0.010 mean dev.", "0.40 of 1"):
        assert text in drawn
    assert "– bits" in gauges.draw_bars(None, REFERENCE, 38).plain


def test_the_history_does_not_rescale():
    low = [make_step(n, "x", entropy=1.0, varentropy=1.0) for n in range(10)]
    high = make_step(10, "x", entropy=8.0, varentropy=16.0)
    alone = gauges.draw_history(low, REFERENCE, 30).plain.splitlines()
    together = gauges.draw_history([*low, high], REFERENCE, 30).plain.splitlines()
    assert [line[:12] for line in together] == [line[:12].ljust(12) for line in alone]
    assert together[0][12] == together[1][12] == "█"
    assert len(gauges.draw_history(low * 20, REFERENCE, 30).plain.splitlines()[0]) == 30


def test_a_token_stands_at_its_place_in_the_plane():
    step = make_step(0, "x", Strategy.RESAMPLE, entropy=7.9, varentropy=15.9)
    plane = gauges.draw_plane([step], REFERENCE, 43, 10)
    assert plane.plain.splitlines()[0][-1] == LOOKS[Strategy.RESAMPLE].glyph
    spans = [span for span in plane.spans if getattr(span.style, "reverse", False)]
    assert len(spans) == 1, "the newest is highlighted"
    corner = gauges.draw_plane([make_step(0, "x", entropy=0, varentropy=0)], REFERENCE, 43, 10)
    assert corner.plain.splitlines()[9][3] == LOOKS[Strategy.ADAPTIVE].glyph


def test_a_threshold_beyond_the_usual_scale_has_a_place():
    far = REFERENCE.replace({"thresholds": {"resample_min_varentropy": 16.57}})
    glyph = LOOKS[Strategy.RESAMPLE].glyph
    assert scales(REFERENCE)["varentropy"].most == 16
    assert scales(far)["varentropy"].most == 20
    assert gauges.threshold_line(far, "varentropy", 40).plain[int(16.57 / 20 * 40)] == glyph
    assert gauges.draw_plane([], far, 43, 10).plain.startswith("20▏")
    endless = REFERENCE.replace({"thresholds": {"resample_min_varentropy": float("inf")}})
    assert scales(endless)["varentropy"].most == 16


def test_what_lies_beyond_a_scale_is_marked():
    step = make_step(0, "x", entropy=9.5, varentropy=40.0)
    assert gauges.draw_bars(step, REFERENCE, 38).plain.count("▶") == 2
    plane = gauges.draw_plane([step], REFERENCE, 43, 10).plain.splitlines()
    assert plane[0].startswith("16▲")
    assert plane[-1].endswith("▶")
    assert "▶" in draw_compact(step, REFERENCE, 60).plain


@pytest.mark.parametrize("width", [12, 20, 30, 38, 39, 40, 60, 100])
@pytest.mark.parametrize("strategy", [Strategy.ARGMAX, Strategy.THINK_SAMPLE])
def test_the_compact_line_is_not_cut(width, strategy):
    line = draw_compact(make_step(0, "x", strategy, entropy=7, varentropy=12), REFERENCE, width)
    assert line.cell_length <= max(width, 21)
    assert LOOKS[strategy].glyph in line.plain
    assert "12.00" in line.plain


def test_no_line_runs_through_bars_and_points():
    steps = [make_step(0, "x", strategy) for strategy in Strategy]
    drawn = [
        *(gauges.draw_bars(step, REFERENCE, 38) for step in steps),
        gauges.draw_history(steps, REFERENCE, 38),
        gauges.draw_plane(steps, REFERENCE, 38, 9),
        draw_compact(steps[0], REFERENCE, 60),
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
    fork = make_step(3, " a", origin=Origin.BRANCH, branch=make_steps()[14].branch)
    assert marked(" a", fork, fork, fork, "") == " ⟨a⟩", "one fork follows another"


def test_counts():
    counts = Counter(step.strategy for step in make_steps())
    drawn = gauges.draw_counts(counts, 38).plain
    for strategy, number in counts.items():
        assert f"{strategy}" in drawn
        assert str(number) in drawn


def test_strategies_differ_without_colour():
    attributes = {
        (style.bold, style.italic, style.underline, style.dim) for style in STYLES.values()
    }
    assert len(attributes) == len(Strategy)
    assert all(LOOKS[s].glyph in legend().plain for s in Strategy if s is not Strategy.SAMPLE)


def test_control_characters_become_visible():
    assert printable("a\x1b[31mb\x07\n\t") == "a␛[31mb␇\n\t"
    assert token_text(" a\n") == "␣a⏎"
    assert token_text("") == "∅"


def test_the_inspector_says_which_threshold_fired_and_by_how_much():
    step = make_step(3, "x", Strategy.BRANCH, entropy=4.0, varentropy=6.5)
    drawn = draw_decision(step, REFERENCE).plain
    assert "entropy 4.000 < 5 by 1.000" in drawn
    assert "varentropy 6.500 > 5 by 1.500" in drawn
    assert "T 0.700" in drawn
    assert "no other" in draw_decision(make_step(0, "x"), REFERENCE).plain
    assert "baseline" in draw_decision(make_step(0, "x", Strategy.SAMPLE), REFERENCE).plain


def test_alternatives_show_their_probability():
    lines = draw_alternatives(make_step(0, "x"), 1, 36).plain.splitlines()
    assert lines[0].startswith(" ✓")
    assert lines[1].startswith("▸ ")
    assert "60.7%" in lines[0]
    assert "not recorded" in draw_alternatives(make_step(0, "x", top_logprobs=()), 0, 36).plain


def test_rollouts_show_their_scores():
    branch = make_steps()[14].branch
    drawn = draw_branch(branch).plain
    assert "✓  way [1] of two." in drawn
    assert drawn.count("  score ") == 3
