"""One side of a duel: its sampler, its answer, and small gauges that follow it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Select

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import TREE_SAMPLER
from entropix_mlx.samplers.registry import SAMPLERS
from entropix_mlx.step import Fork, Step

from ..gauges.compact import Compact
from ..gauges.plane import Plane
from ..gauges.race import Race
from ..gauges.strip import Strip
from ..transcript.answer import AnswerView
from ..transcript.following import Following


class DuelSide(Vertical):
    """Grows while its side answers."""

    def __init__(self, number: int, sampler: str, profile: Profile) -> None:
        """Begin without an answer.

        Args:
            number: 0 or 1.
            sampler: the one that is selected at first.
            profile: whose thresholds the gauges show.
        """
        super().__init__(classes="side")
        self._number = number
        self._first = sampler
        self._profile = profile
        self._ways = Race()
        self._compact = Compact(profile, id="compact")
        self._gauges = (self._compact, Strip(profile, id="strip"), Plane(profile))

    def compose(self) -> ComposeResult:
        """Make the sampler, the answer and the gauges below each other."""
        options = [(name, name) for name in SAMPLERS]
        name = f"sampler-{self._number}"
        yield Select(options, value=self._first, allow_blank=False, compact=True, id=name)
        yield Following(AnswerView(), id=f"side-{self._number}")
        yield self._ways
        yield from self._gauges

    @property
    def sampler(self) -> str:
        """The sampler that is selected."""
        return str(self.query_one(Select).value)

    @property
    def steps(self) -> list[Step]:
        """The answer so far; none while another one begins, or the app ends."""
        view = next(iter(self.query(AnswerView)), None)
        return view.steps if view else []

    async def clear(self) -> None:
        """Begin again without an answer."""
        container = self.query_one(f"#side-{self._number}", Following)
        await container.remove_children()
        await container.mount(AnswerView())
        self._ways.show(None)
        self._compact.meant = self.sampler == TREE_SAMPLER
        for gauge in self._gauges:
            gauge.show_answer([], self._profile)

    def add(self, steps: Sequence[Step]) -> None:
        """Take more steps; the next `draw` shows them on the gauges."""
        if steps:
            self._ways.show(None)
            self.query_one(AnswerView).append(steps)
            for gauge in self._gauges:
                gauge.add_steps(steps)

    def race(self, fork: Fork) -> None:
        """Show the ways of a fork as far as they have grown; the next steps end that."""
        self._ways.show(fork)

    def point(self, index: int) -> None:
        """Mark a token, in the text and on the gauges."""
        if index < len(self.steps):
            self.query_one(AnswerView).point(index)
            self.query_one(Strip).point(index)

    def draw(self) -> None:
        """Bring the ways of a fork and the gauges up to date."""
        self._ways.draw()
        for gauge in self._gauges:
            gauge.draw()
