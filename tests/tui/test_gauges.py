"""The gauges: fixed scales, thresholds at their values, every strategy recognisable."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content
from textual.style import Style

from entropix_mlx import Profile
from entropix_mlx.chat.recorded import demo_profile
from entropix_mlx.palette import MEANINGS, SHORT_NAMES, SWATCHES
from entropix_mlx.profiles.tree import classify
from entropix_mlx.step import Origin, Strategy
from entropix_mlx.traces.explain import TOO_WIDE, words
from entropix_mlx.tui.answer import Answer
from entropix_mlx.tui.drawing import DIM, bar, scales
from entropix_mlx.tui.gauges import gauges
from entropix_mlx.tui.gauges.drawn import lines_of
from entropix_mlx.tui.gauges.gauges import draw_race
from entropix_mlx.tui.gauges.lines import Cells, draw_strip
from entropix_mlx.tui.gauges.plane import NAMES, Background, Cloud, Map, draw_plane, regions
from entropix_mlx.tui.styles import COLOURS, STYLES
from tests.steps import make_step, make_steps
from tests.tui.conftest import make_viewer, racing, running, until

REFERENCE = Profile.load()
DEMO = demo_profile()
RED = Style.parse("red")


@pytest.mark.parametrize(
    ("value", "drawn"),
    [(0, "    "), (2, "█   "), (3, "█▌  "), (8, "████"), (99, "███▶"), (float("nan"), "    ")],
)
def test_a_bar_is_full_at_the_end_of_its_scale(value, drawn):
    assert bar(value, 8.0, 4) == drawn


def test_thresholds_stand_at_their_values():
    line = gauges.threshold_line(REFERENCE, "entropy", 40).plain
    assert line[int(3.0 / 8 * 40)] == SWATCHES[Strategy.THINK].glyph
    assert (
        line[int(5.0 / 8 * 40)]
        in SWATCHES[Strategy.BRANCH].glyph + SWATCHES[Strategy.RESAMPLE].glyph
    )
    moved = REFERENCE.replace({"thresholds": {"think_min_entropy": 6.0}})
    assert gauges.threshold_line(moved, "entropy", 40).plain[30] == SWATCHES[Strategy.THINK].glyph


def bars(step=None, profile=REFERENCE) -> str:
    values, style = (step.metrics._asdict(), COLOURS[step.strategy]) if step else ({}, DIM)
    return gauges.draw_bars(values, style, profile, 38).plain


def test_every_measurement_has_a_bar_a_number_and_a_unit():
    drawn = bars(make_step(0, "x", entropy=2.5, varentropy=4.25))
    for text in ("2.50 bits", "4.25 bits²", "0.25 of 1"):
        assert text in drawn
    assert "– bits" in bars()


@pytest.mark.parametrize("profile", [REFERENCE, DEMO], ids=["reference", "demo"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_the_word_for_h_the_map_and_the_help_agree_with_the_decision(profile, margin):
    plane = Map.of(profile, 40, 20)
    found = regions(profile, plane)
    for line, column in itertools.product(range(plane.lines), range(plane.columns)):
        entropy, varentropy = plane.at(column, line)
        assert plane.place(entropy, varentropy) == (column, line)
        step = make_step(0, "x", entropy=entropy, varentropy=varentropy, margin=margin)
        described = words(profile, step.metrics._asdict())
        decided = classify([step], profile)[0]
        assert described["entropy"] == SHORT_NAMES[decided]
        assert NAMES[decided][0].startswith(described["entropy"])
        assert MEANINGS[decided][0].endswith(described["entropy"])
        excused = decided is not found[line][column]
        assert (described["margin"] == TOO_WIDE) is excused, "why the map says something else"
        assert margin or not excused
    assert words(profile, {}) == {}


@pytest.mark.parametrize(
    ("entropy", "varentropy", "margin", "described"),
    [
        (2.0, 2.0, 0.3, ("sure", "flat")),
        (2.04, 2.0, 0.3, ("mixed", "flat")),
        (4.0, 7.0, 0.3, ("mixed", "uneven")),
        (4.0, 5.0, 0.3, ("uncertain", "flat")),
        (4.0, 12.0, 0.1, ("fork", "spiky")),
        (4.0, 12.0, 0.3, ("mixed", "spiky", "too wide to fork")),
        (6.0, 18.0, 0.3, ("wide open", "spiky")),
    ],
)
def test_values_of_a_token_are_described_but_not_averages(entropy, varentropy, margin, described):
    values = make_step(0, "x", entropy=entropy, varentropy=varentropy, margin=margin).metrics
    for width in (32, 38):
        drawn = gauges.draw_bars(values._asdict(), Style(), DEMO, width).plain
        assert all(word[: width - 20] in drawn for word in described)
        assert all(len(line) <= width for line in drawn.splitlines())
    averages = gauges.draw_bars(values._asdict(), Style(), DEMO, 38, "averages").plain
    assert described[0] not in averages.replace("averages", "")


def drawn_plane(steps, profile=REFERENCE, columns=40, lines=10, **more):
    plane = Map.of(profile, columns, lines)
    strategies = [step.strategy for step in steps]
    cloud = Cloud(plane)
    cloud.add(steps, strategies)
    marks = list(zip(steps, strategies, strict=True))
    return draw_plane(Background.of(profile, plane), cloud, marks, **more)


def highlighted(content) -> list:
    return [span for span in content.spans if getattr(span.style, "reverse", False)]


def test_a_token_stands_at_its_place_in_the_plane():
    step = make_step(0, "x", Strategy.RESAMPLE, entropy=7.9, varentropy=15.9)
    plane = drawn_plane([step])
    assert plane.plain.splitlines()[0][-1] == SWATCHES[Strategy.RESAMPLE].glyph
    assert len(highlighted(plane)) == 1, "the newest"
    corner = drawn_plane([make_step(0, "x", entropy=0, varentropy=0)])
    assert corner.plain.splitlines()[9][4] == SWATCHES[Strategy.ADAPTIVE].glyph
    inserted = make_step(0, "x", Strategy.THINK, entropy=0, varentropy=0, origin=Origin.INSERTED)
    assert drawn_plane([inserted]).plain.splitlines()[9][4] == "◇", "hollow"


def test_the_token_under_the_cursor_has_a_crosshair():
    steps = make_steps()
    plane = drawn_plane(steps, pointed=(steps[3], steps[3].strategy))
    x, y = Map.of(REFERENCE, 40, 10).place(steps[3].entropy, steps[3].varentropy)
    lines = [line[4:] for line in plane.plain.splitlines()]
    assert {line[x] for n, line in enumerate(lines[:10]) if n != y} <= {"│", *"mixed"}
    line = lines[y].replace("mixed", "─" * 5)  # names stand above the crosshair
    assert {letter for n, letter in enumerate(line) if n != x} == {"─"}
    assert len(highlighted(plane)) == 1


def test_regions_have_borders_and_names():
    drawn = drawn_plane([], DEMO, 60, 20).plain
    for name in ("sure", "uncertain → think", "fork", "wide open", "mixed"):
        assert name in drawn
    assert "┐" in drawn
    border = drawn.splitlines()[8][4:]
    assert set(border[1:39]) == {"─"}
    assert "─" not in border[41:], "a border ends with its region"
    small = drawn_plane([], DEMO, 26, 14).plain
    assert "open" in small, "a shorter name for a small region"
    assert "wide open" not in small


def test_a_threshold_beyond_the_usual_scale_has_a_place():
    far = REFERENCE.replace({"thresholds": {"resample_min_varentropy": 16.57}})
    glyph = SWATCHES[Strategy.RESAMPLE].glyph
    assert scales(REFERENCE)["varentropy"].most == 16
    assert scales(far)["varentropy"].most == 20
    assert gauges.threshold_line(far, "varentropy", 40).plain[int(16.57 / 20 * 40)] == glyph
    assert drawn_plane([], far).plain.startswith(" 20▏")
    endless = REFERENCE.replace({"thresholds": {"resample_min_varentropy": float("inf")}})
    assert scales(endless)["varentropy"].most == 16


def test_values_beyond_a_scale_are_marked():
    step = make_step(0, "x", entropy=9.5, varentropy=40.0)
    assert bars(step).count("▶") == 2
    plane = drawn_plane([step]).plain.splitlines()
    assert plane[0].startswith(" 16▲")
    assert plane[-1].endswith("▶")


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
    assert strip.plain[12] == "█", "a rare token is not averaged away"
    (span,) = highlighted(strip)
    assert span.start == 12
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


@pytest.mark.parametrize(("width", "explained"), [(32, False), (38, True), (80, True)])
def test_counts_explain_each_strategy_where_there_is_room(width, explained):
    counts = Counter({strategy: 1000 + n for n, strategy in enumerate(Strategy)})
    lines = gauges.draw_counts(counts, width).plain.splitlines()
    assert {len(line) for line in lines} == {width}
    for line, strategy in zip(lines, Strategy, strict=True):
        meaning = SHORT_NAMES.get(strategy)
        assert f"{SWATCHES[strategy].glyph} {strategy} " in line
        assert f" {counts[strategy]} " in line
        assert meaning is None or (f" {meaning} " in line) is explained


def test_strategies_differ_without_colour_and_underline_no_bar():
    attributes = {
        (style.bold, style.italic, style.underline, style.dim) for style in STYLES.values()
    }
    assert len(attributes) == len(Strategy)
    steps = [make_step(0, "x", strategy) for strategy in Strategy]
    drawn = [
        *(gauges.draw_bars({}, COLOURS[step.strategy], REFERENCE, 38) for step in steps),
        drawn_plane(steps),
        draw_strip(cells_of(steps, 38), 8.0),
    ]
    assert not [span for content in drawn for span in content.spans if span.style.underline]


def test_a_race_shows_the_best_branch_and_the_end_of_each():
    fork = make_steps()[14].fork
    drawn = draw_race(fork, 60).plain.splitlines()
    assert drawn[0] == "▲ 3 branches, token 2; scores in nats/token"
    assert draw_race(fork, 30).plain.splitlines()[0] == "▲ 3 branches, token 2"
    assert [line[14] for line in drawn[1:]] == [" ", "▸", " "]
    assert all(len(line) <= 40 for line in draw_race(fork, 24).plain.splitlines()[1:])


async def test_the_branches_of_a_fork_are_shown_until_the_next_steps():
    app = make_viewer()
    workspace = app.workspace
    fork = make_steps()[14].fork
    async with running(app) as pilot:
        bars = app.query_one("#bars")
        before = bars.region
        assert not racing(app)
        workspace.show_fork(fork)
        await until(pilot, lambda: racing(app))
        assert bars.region == before, "nothing jumps"
        await until(pilot, lambda: "comparing 3 branches" in str(workspace.why.visual))
        workspace.append([make_step(60, "x")])
        await until(pilot, lambda: not racing(app))


def test_lines_keep_their_styles():
    content = Content.assemble("a", ("b\nc", RED), "\n", "d")
    assert lines_of(content) == [(("a", None), ("b", RED)), (("c", RED),), (("d", None),)]
    with pytest.raises(TypeError):
        lines_of(Content.styled("a", "bold"))


def test_strain_has_a_bar_where_there_is_a_constraint_only():
    steps = [make_step(0, "x", strain=3.0), make_step(1, "y", strain=5.0)]
    answer = Answer()
    assert answer.strain is None
    answer.add(steps)
    assert answer.strain == 5.0
    assert Answer(steps).strain == 4.0
    assert Answer(make_steps()).strain is None
    heading, drawn = gauges.draw_strain(5.0, RED, 40).plain.split("\n")
    assert (heading[:6], heading[-9:]) == ("strain", "5.00 bits")
    assert drawn.count("█") == 20
