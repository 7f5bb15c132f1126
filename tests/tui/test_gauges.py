"""The gauges: fixed scales, thresholds at their values, every strategy recognisable."""

import itertools

import pytest
from textual.style import Style

from entropix_mlx import Profile
from entropix_mlx.chat.recorded import demo_profile
from entropix_mlx.palette import MEANINGS, SHORT_NAMES, SWATCHES
from entropix_mlx.profiles.tree import classify
from entropix_mlx.step import Origin, Strategy
from entropix_mlx.traces.explain import TOO_WIDE, words
from entropix_mlx.traces.scales import fitting_scales
from entropix_mlx.tui.drawing import DIM, bar
from entropix_mlx.tui.gauges import gauges
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
    line = gauges.threshold_line(REFERENCE, "entropy", 8.0, 40).plain
    assert line[int(3.0 / 8 * 40)] == SWATCHES[Strategy.THINK].glyph
    assert (
        line[int(5.0 / 8 * 40)]
        in SWATCHES[Strategy.BRANCH].glyph + SWATCHES[Strategy.RESAMPLE].glyph
    )
    moved = REFERENCE.replace({"thresholds": {"think_min_entropy": 6.0}})
    assert (
        gauges.threshold_line(moved, "entropy", 8.0, 40).plain[30] == SWATCHES[Strategy.THINK].glyph
    )


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
        (4.0, 7.0, 0.3, ("mixed", "uneven")),
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
    strategies = [step.strategy for step in steps]
    cloud = Cloud(Background.of(profile, Map.of(profile, columns, lines)))
    cloud.add(steps, strategies)
    marks = list(zip(steps, strategies, strict=True))
    return draw_plane(cloud, marks, **more)


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


def test_a_threshold_beyond_the_usual_scale_has_a_place():
    far = REFERENCE.replace({"thresholds": {"resample_min_varentropy": 16.57}})
    glyph = SWATCHES[Strategy.RESAMPLE].glyph
    assert fitting_scales(REFERENCE)["varentropy"].most == 16
    assert fitting_scales(far)["varentropy"].most == 20
    assert gauges.threshold_line(far, "varentropy", 20.0, 40).plain[int(16.57 / 20 * 40)] == glyph
    assert drawn_plane([], far).plain.startswith(" 20▏")
    endless = REFERENCE.replace({"thresholds": {"resample_min_varentropy": float("inf")}})
    assert fitting_scales(endless)["varentropy"].most == 16


def test_values_beyond_a_scale_are_marked():
    step = make_step(0, "x", entropy=9.5, varentropy=40.0)
    assert bars(step).count("▶") == 2
    plane = drawn_plane([step]).plain.splitlines()
    assert plane[0].startswith(" 16▲")
    assert plane[-1].endswith("▶")


def test_strategies_differ_without_colour_and_underline_no_bar():
    attributes = {
        (style.bold, style.italic, style.underline, style.dim) for style in STYLES.values()
    }
    assert len(attributes) == len(Strategy)
    steps = [make_step(0, "x", strategy) for strategy in Strategy]
    drawn = [
        *(gauges.draw_bars({}, COLOURS[step.strategy], REFERENCE, 38) for step in steps),
        drawn_plane(steps),
    ]
    assert not [span for content in drawn for span in content.spans if span.style.underline]


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
