"""The gauges beside the text: bars with their thresholds, counts, a running fork.

Every scale is fixed as long as the profile is, so that a picture means the same at any moment and
in any answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.style import Style

from entropix_mlx.palette import SHORT_NAMES, SWATCHES, printable
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.step import Fork, Step, Strategy
from entropix_mlx.traces.explain import words

from ..containers import Blank
from ..drawing import DIM, bar, by_profile, runs, scales
from ..help_text import reachable
from ..styles import COLOURS, STYLES
from .drawn import Drawn

PLAIN = Style()
LABEL_WIDTH = 4
THRESHOLDS = ("entropy", "varentropy", "margin")
"""The measurements that have thresholds."""
NAME, LONGEST = 11, 15
"""Cells of a strategy's name, and of the longest one; it is not explained, and may be longer."""
MEANING = 1 + max(map(len, SHORT_NAMES.values()))
NUMBERS, SHORTEST = 9, 3
"""Cells of a count with its share, and of a bar at least."""
BAR_WIDTH = 6
MOST_STRAIN = 10.0
"""Bits at the end of the bar: the constraint forbids what the model is 99.9 % sure of."""
TEXT_INDENT = BAR_WIDTH + 10
"""Cells before the text of a branch."""


class LiveValues:
    """The values that gauges show: of the newest token, or averages at the end of an answer."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        """Begin with a whole answer; steps that are added later are of one that is growing."""
        self.step: Step | None = None
        """The newest one; None at the end of an answer, and before its beginning."""
        self.counts: Counter[Strategy] = Counter()
        """Tokens by strategy."""
        self._sums: Counter[str] = Counter()
        self._strains: list[float] = []
        self.add(steps)
        self.step = None

    def add(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.counts[step.strategy] += 1
            self._sums.update(step.metrics._asdict())
            if step.strain is not None:
                self._strains.append(step.strain)
            self.step = step

    @property
    def tokens(self) -> int:
        return self.counts.total()

    @property
    def values(self) -> Mapping[str, float]:
        """The measurements to show, by name; empty if nothing was measured yet."""
        if self.step is not None:
            return self.step.metrics._asdict()
        return {name: total / self.tokens for name, total in self._sums.items()}

    @property
    def strain(self) -> float | None:
        """Bits; None where no constraint was put on the answer."""
        if not self._strains:
            return None
        return self._strains[-1] if self.step is not None else fmean(self._strains)

    @property
    def style(self) -> Style:
        if self.step is not None:
            return COLOURS[self.step.strategy]
        return PLAIN if self.tokens else DIM


class Gauges(Blank, VerticalScroll):
    """All gauges, one below the other: of the newest token, or at the end of the whole answer."""

    DEFAULT_CSS = """
    Gauges { padding: 0 1; }
    Gauges Static { height: auto; }
    """

    def __init__(self, profile: Profile, *, id: str) -> None:
        super().__init__(id=id, can_focus=False)
        self._profile = profile
        self._values = LiveValues()
        self._fork: Fork | None = None  # whose branches race in the place of the bars
        self.has_thresholds = True
        """See `draw_counts`."""

    def compose(self) -> ComposeResult:
        for name in ("bars", "counts"):
            yield Drawn(id=name)

    def on_resize(self) -> None:
        self.draw()

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        """Show a whole answer, with its averages, and a profile's thresholds."""
        self._profile = profile
        self._values, self._fork = LiveValues(steps), None
        self.draw()

    def show_fork(self, fork: Fork) -> None:
        """Show the branches of a fork from the next `draw` on, until the next step."""
        self._fork = fork

    def add_steps(self, steps: Sequence[Step]) -> None:
        self._fork = None
        self._values.add(steps)

    def draw(self) -> None:
        width = self.content_size.width - 1
        if width < 32:
            return
        live = self._values
        values, style = live.values, live.style
        ended = live.tokens and live.step is None
        title = f"averages over {live.tokens} tokens" if ended else ""
        bars = draw_bars(values, style, self._profile, width, title)
        if live.strain is not None:
            bars += Content("\n") + draw_strain(live.strain, style, width)
        if self._fork is not None:
            bars = in_place_of(bars, draw_race(self._fork, width))
        counts = draw_counts(live.counts, width, self.has_thresholds, self._profile)
        self.query_one("#bars", Drawn).draw_content(bars)
        self.query_one("#counts", Drawn).draw_content(counts)


def in_place_of(drawing: Content, other: Content) -> Content:
    """Return the other drawing with as many lines as this one, so that nothing moves."""
    height = len(drawing.split("\n", allow_blank=True))
    lines = [*other.split("\n", allow_blank=True), *[Content()] * height]
    return Content("\n").join(lines[:height])


@by_profile
def threshold_line(profile: Profile, name: str, width: int) -> Content:
    """Return the line below a measurement's bar: a strategy's glyph at each threshold."""
    line = [("·", DIM)] * width
    most = scales(profile)[name].most
    for row in table(profile):
        if row.strategy not in reachable(profile):
            continue
        for bound in row.bounds.get(name, ()):
            if 0 < bound < most:
                cell = min(width - 1, int(bound / most * width))
                line[cell] = (SWATCHES[row.strategy].glyph, COLOURS[row.strategy])
    return runs(line)


def draw_bars(
    values: Mapping[str, float], style: Style, profile: Profile, width: int, title: str = ""
) -> Content:
    """Return H, V and the margin as bars with their thresholds.

    Values with a title are averages; those of a single token are also described in words.
    """
    lines = [Content.styled(title, DIM)] if title else []
    descriptions = {} if title else words(profile, values)  # an average lies in no region
    for name, scale in scales(profile).items():
        if name not in THRESHOLDS:
            continue
        value = values.get(name, math.nan)
        number = f"{value:.2f} {scale.unit}" if values else f"– {scale.unit}"
        room = width - len(scale.label) - len(number) - 2
        word = descriptions.get(name, "")[:room].ljust(room)
        lines += [
            Content.assemble((scale.label, DIM), f"  {word}{number}"),
            Content.styled(bar(value, scale.most, width), style),
            threshold_line(profile, name, width),
        ]
    return Content("\n").join(lines)


def draw_strain(strain: float, style: Style, width: int) -> Content:
    """Return how much a constraint changes, as a bar."""
    label, number = "strain", f"{strain:.2f} bits"
    gap = " " * (width - len(label) - len(number))
    heading = Content.assemble((label, DIM), f"{gap}{number}")
    return heading + Content("\n") + Content.styled(bar(strain, MOST_STRAIN, width), style)


def draw_counts(
    counts: Counter[Strategy],
    width: int,
    has_thresholds: bool = True,
    profile: Profile | None = None,
) -> Content:
    """Return the tokens of each strategy that a profile can choose; this is the legend, too.

    Where thresholds decided, a strategy also names the state of the model, if there is room.
    """
    total = max(1, counts.total())
    explained = has_thresholds and width >= NAME + MEANING + NUMBERS + SHORTEST
    lines = []
    for strategy in Strategy:
        usual = strategy is not Strategy.SAMPLE and strategy in reachable(profile)
        if not usual and not counts[strategy]:
            continue
        share = counts[strategy] / total
        name = f"{SWATCHES[strategy].glyph} {strategy}"
        meaning = SHORT_NAMES.get(strategy, "") if explained else ""
        room = NAME + MEANING if explained else LONGEST
        gap = f"{' ' * (NAME - len(name))}{meaning}".ljust(room - len(name))
        drawn = bar(share, 1.0, max(width - room - NUMBERS, 0))
        number = f"{counts[strategy]} {share:4.0%}".rjust(NUMBERS)
        styled = Content.styled(name, STYLES[strategy])
        drawn_bar = Content.styled(drawn, COLOURS[strategy])
        lines.append(styled + Content(gap) + drawn_bar + Content(number))
    return Content("\n").join(lines)


class ForkRace(Drawn):
    """The branches of a fork, while they are compared."""

    DEFAULT_CSS = "ForkRace { height: auto; padding: 0 1; display: none; }"
    _fork: Fork | None = None

    def show(self, fork: Fork | None) -> None:
        """Show a fork from the next `draw` on; None hides it at once."""
        self._fork = fork
        self.display = self.display and fork is not None

    def draw(self) -> None:
        if self._fork is not None:
            self.display = True
            self.draw_content(draw_race(self._fork, self.container_size.width - 2))


def draw_race(fork: Fork, width: int) -> Content:
    """Return a line per branch: its score against the first, and the end of its text so far.

    The bar shows exp(mean log p): about the mean probability of a token. Scores are in nats/token.
    """
    length = max(len(branch.tokens) for branch in fork.branches)
    short = f"{SWATCHES[Strategy.BRANCH].glyph} {len(fork.branches)} branches, token {length}"
    heading = next(
        text
        for text in (f"{short}; scores in nats/token", short)
        if len(text) <= width or text is short
    )
    lines = [Content.styled(heading, COLOURS[Strategy.BRANCH])]
    room = max(1, width - TEXT_INDENT)
    for number, branch in enumerate(fork.branches):
        leads = number == fork.winner
        text = printable(branch.text).replace("\n", "⏎")
        tail = text if len(text) <= room else f"…{text[1 - room :]}"
        style = COLOURS[Strategy.BRANCH] if leads else DIM
        drawn = bar(math.exp(min(0.0, branch.mean_logprob)), 1.0, BAR_WIDTH)
        score = f" {branch.lead or 0.0:+6.2f} {'▸' if leads else ' '}"
        lines.append(Content.assemble((drawn, style), score, (tail, style)))
    return Content("\n").join(lines)
