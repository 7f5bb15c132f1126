"""The answer whose measurements are shown: what gauges, plane and lines read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import classify
from entropix_mlx.step import Fork, Step, Strategy
from entropix_mlx.summary import Summary

from .styles import notable


class Answer:
    """The answer in which the cursor is, or else the last one, as far as it has come.

    Widgets have it as a reactive attribute, and draw when the workspace reports that it changed.
    """

    def __init__(
        self,
        steps: Sequence[Step] = (),
        profile: Profile | None = None,
        seed: int | None = None,
        decides: bool = True,
    ) -> None:
        """Begin with a whole answer; steps that are added later are of one that is growing.

        Args:
            profile: whose thresholds are drawn; the published one by default.
            seed: of the answer.
            decides: whether the sampler decides by the profile's thresholds.
        """
        self.profile = profile or Profile.load()
        self.seed = seed
        self.decides = decides
        self.steps: list[Step] = []
        self.strategies: list[Strategy] = []
        """Those that decided, or in a preview those that the profile would choose."""
        self.summary = Summary()
        self.cursor: int | None = None
        """The token under the cursor."""
        self.fork: Fork | None = None
        """A fork whose branches are compared now."""
        self._sums: Counter[str] = Counter()
        self.add(steps)
        self.ended = True

    def add(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.steps.append(step)
            self.strategies.append(step.strategy)
            self.summary.add(step)
            self._sums.update(step.metrics._asdict())
        self.fork, self.ended = None, False

    def decided_by(self, profile: Profile) -> Answer:
        """Return the answer with the strategies that a profile would choose."""
        other = Answer(self.steps, profile, self.seed, self.decides)
        other.strategies = classify(self.steps, profile)
        return other

    @property
    def changed(self) -> int:
        """The tokens of a preview whose strategy differs from the one that decided."""
        pairs = zip(self.steps, self.strategies, strict=True)
        return sum(step.strategy is not strategy for step, strategy in pairs)

    def counts(self, strategy: Strategy) -> tuple[int, int]:
        """Return the tokens that have a strategy: as decided, and in the preview."""
        return self.summary.strategies[strategy], self.strategies.count(strategy)

    @property
    def thresholds(self) -> Profile | None:
        """The profile that decides; None where the sampler has no thresholds."""
        return self.profile if self.decides else None

    @property
    def pointed(self) -> Step | None:
        return None if self.cursor is None else self.steps[self.cursor]

    @property
    def newest(self) -> Step | None:
        """The newest step; None at the end of an answer, and before its beginning."""
        return self.steps[-1] if self.steps and not self.ended else None

    @property
    def places(self) -> int:
        """The number of unsure places."""
        return len(notable(self.steps))

    @property
    def values(self) -> Mapping[str, float]:
        """The measurements of the newest token, or means at the end; empty without a token."""
        if self.newest is not None:
            return self.newest.metrics._asdict()
        return {name: total / len(self.steps) for name, total in self._sums.items()}
