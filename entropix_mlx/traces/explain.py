"""Why a step was decided as it was: every condition of the decision tree, with its metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ..palette import SHORT_NAMES, SWATCHES
from ..profiles.profile import Profile
from ..profiles.sections import UNFORKED_ARGMAX, BranchStrategy
from ..profiles.tree import TreeRow, first_fit, table
from ..records import printable
from ..step import (
    NOT_OF_THE_MODEL,
    Branch,
    ChosenBy,
    Fork,
    Metrics,
    Origin,
    Step,
    Strategy,
)

TOO_WIDE = "too wide to fork"
"""Beside a margin that keeps a token in the fork's region from being one."""
ORIGINS = {
    Origin.SAMPLED: "sampled",
    Origin.INSERTED: "part of an inserted thought",
    Origin.BRANCH: "from the winning branch of a fork",
    Origin.CHOSEN: "your choice",
    Origin.READ: "given text",
}
SYMBOLS = {"entropy": "H", "varentropy": "V", "margin": "margin"}


class Condition(NamedTuple):
    """One side of a bound, and the metric that must lie on it."""

    metric: str
    value: float
    bound: float
    above: bool  # whether the value must lie above the bound; else it must lie below

    @property
    def met(self) -> bool:
        return self.value > self.bound if self.above else self.value < self.bound

    @property
    def distance(self) -> float:
        """Between the value and the bound, in the metric's unit."""
        return abs(self.value - self.bound)

    @property
    def text(self) -> str:
        """The value, and on which side of the bound it lies: ``"H 3.13 < 5.30"``."""
        side = "=" if self.value == self.bound else "<" if self.value < self.bound else ">"
        return self._written(side)

    @property
    def verdict(self) -> str:
        """The condition, its sign struck out where it does not hold: ``"H 3.13 ≯ 5.30"``."""
        if self.above:
            return self._written(">" if self.met else "≯")
        return self._written("<" if self.met else "≮")

    def _written(self, sign: str) -> str:
        value, bound = _numbers(self.value, self.bound)
        return f"{SYMBOLS.get(self.metric, self.metric)} {value} {sign} {bound}"


class Case(NamedTuple):
    """A strategy and its conditions."""

    strategy: Strategy
    conditions: tuple[Condition, ...]  # none for the strategy that is left when no other fits

    @property
    def unmet(self) -> tuple[Condition, ...]:
        """The conditions that do not hold; with none, the strategy fits."""
        return tuple(condition for condition in self.conditions if not condition.met)


class Explanation(NamedTuple):
    """Why a step was decided as it was. Printed, it is one line."""

    strategy: Strategy
    cases: tuple[Case, ...]
    """Every strategy, in the order of precedence; empty where the thresholds had no part."""
    reason: Case | None
    """The case that decided; None if the tree would decide otherwise than the step states: text was
    inserted, or another profile or a sampler without thresholds decided."""
    near: Case | None  # the strategy that would have come first and lacked least
    name: str  # the strategy's, or "fork" where branches were compared
    action: str
    parameters: str

    def __str__(self) -> str:
        near = f"; {self.near_miss}" if self.near_miss else ""
        return self.heading + self.reasons + self.outcome + near

    @property
    def heading(self) -> str:
        return f"{SWATCHES[self.strategy].glyph} {self.name}"

    @property
    def reasons(self) -> str:
        """The conditions that decided, as they follow the heading; empty if there are none."""
        because = self.reason.conditions if self.reason else ()
        return ": " + " ".join(f"{condition.text} ✓" for condition in because) if because else ""

    @property
    def outcome(self) -> str:
        """What was done, as it follows the heading or the reasons."""
        action = f" → {self.action}" if self.action else ""
        return action + (f", {self.parameters}" if self.parameters else "")

    @property
    def near_miss(self) -> str:
        """The other strategy that lacked least, and what it lacked; empty if none came near."""
        if self.near is None:
            return ""
        lacks = ", ".join(condition.text for condition in self.near.unmet)
        how = "nearly" if len(self.near.unmet) == 1 else "nearest"
        return f"{how} {SWATCHES[self.near.strategy].glyph}: {lacks}"


def lead(branch: Branch) -> str:
    """Return a branch's lead over the first one, ``"+0.39 ± 0.38"``."""
    if branch.lead is None:
        return "–"
    return f"{branch.lead:+.2f}" + (f" ± {branch.error:.2f}" if branch.error else "")


def standing(branch: Branch) -> str:
    return f"log p {branch.mean_logprob:.2f}" if branch.lead is None else f"{lead(branch)} nats"


def cases_of(profile: Profile, metrics: Metrics[float]) -> tuple[Case, ...]:
    return tuple(_case(row, metrics) for row in table(profile))


def decided(cases: tuple[Case, ...]) -> Case:
    return next(case for case in cases if not case.unmet)


def explain(profile: Profile | None, step: Step) -> Explanation:
    """Return why a step was decided as it was; without a profile, the sampler has no thresholds."""
    cases = () if profile is None or _without_table(step) else cases_of(profile, step.metrics)
    reason = decided(cases) if cases else None
    if reason and step.strategy not in (reason.strategy, reason.strategy.sampled()):
        reason = None
    return Explanation(
        strategy=step.strategy,
        cases=cases,
        reason=reason,
        near=_nearest(cases, reason) if reason else None,
        name="fork" if step.fork else str(step.strategy),
        action=_action(step, profile),
        parameters=_parameters(step, profile if reason else None),
    )


def words(profile: Profile, values: Mapping[str, float]) -> dict[str, str]:
    """Return words for some measurements, by their names.

    The word for H names the region in which all of them lie, as the map does. The word for the
    margin says where it alone prevents a fork.
    """
    if not values:
        return {}
    rows, measured = table(profile), Metrics(**values)
    here, mapped = first_fit(rows, measured), first_fit(rows, measured._replace(margin=0.0))
    low, high = spikiness(profile)
    varentropy = measured.varentropy
    return {
        "entropy": SHORT_NAMES[here],
        "varentropy": "spiky" if varentropy >= high else "flat" if varentropy < low else "uneven",
        "margin": "" if here is mapped else TOO_WIDE,
    }


def spikiness(profile: Profile) -> tuple[float, float]:
    """Return the V below which tokens may be sure, and that above which they may be forks."""
    return profile.thresholds.low_varentropy, profile.thresholds.branch_min_varentropy


def _case(row: TreeRow, metrics: Metrics[float]) -> Case:
    conditions = []
    for name, (low, high) in row.bounds.items():
        if low != -math.inf:
            conditions.append(Condition(name, metrics[name], low, above=True))
        if high != math.inf:
            conditions.append(Condition(name, metrics[name], high, above=False))
    return Case(row.strategy, tuple(conditions))


def _without_table(step: Step) -> bool:
    """Return whether no decision was made where a step stands, or one without thresholds."""
    here = step.rolled_back and step.triggered_at in (None, step.index)
    elsewhere = step.origin in NOT_OF_THE_MODEL and not here
    return elsewhere or step.strategy is Strategy.SAMPLE


def _nearest(cases: tuple[Case, ...], reason: Case) -> Case | None:
    """Return which of the cases before the one that decided lacked least.

    Where that had conditions of its own, only a case that lacked a single one comes near.
    """
    before = cases[: cases.index(reason)]
    if reason.conditions:
        before = tuple(case for case in before if len(case.unmet) == 1)
    reachable = [case for case in before if math.isfinite(_lack(case))]
    return min(reachable, key=lambda case: (len(case.unmet), _lack(case)), default=None)


def _lack(case: Case) -> float:
    """Return how much a case lacks: distances as shares of both numbers, so they can be added."""
    return sum(
        unmet.distance / ((abs(unmet.value) + abs(unmet.bound)) or 1.0) for unmet in case.unmet
    )


def _action(step: Step, profile: Profile | None) -> str:
    if step.origin is Origin.INSERTED:
        text = profile.think.text if profile else None
        said = text.strip() if isinstance(text, str) else ""
        what = f"“{said}”" if said else "a thinking text"
        place = step.index if step.triggered_at is None else step.triggered_at
        trigger = f", triggered at token {place + 1}" if place < step.index else ""
        return f"inserting {what}{trigger}" if step.rolled_back else "part of the inserted text"
    if step.origin is Origin.RETRIEVED:
        source = step.source
        return f"retrieved from {printable(source.label)}" if source else "part of a passage"
    if step.fork is not None:
        return f"comparing {len(step.fork.branches)} branches, {_chosen(step.fork)}"
    if step.origin is Origin.CHOSEN:
        return "your choice"
    if step.strategy is Strategy.BRANCH and step.origin is Origin.SAMPLED and profile:
        return _unforked(profile.branch)
    return "the most probable token" if step.strategy is Strategy.ARGMAX else ""


def _unforked(rule: BranchStrategy) -> str:
    taken = "the most probable token" if rule.unforked == UNFORKED_ARGMAX else "no fork here"
    most = f"at most {rule.max_branches} forks an answer, {rule.min_gap} tokens apart"
    return f"{taken} ({most if rule.max_branches else 'forks are off: --branch turns them on'})"


def _chosen(fork: Fork) -> str:
    if fork.chosen_by is ChosenBy.USER:
        return "you chose"
    if not fork.winner:
        return "none clearly leads the first"
    winner = fork.branches[fork.winner]
    leader = "the best" if winner.lead is None else "one leads the first"
    return f"{leader} by {standing(winner)}"


def _parameters(step: Step, profile: Profile | None) -> str:
    """Return the temperature of a draw; also the profile's own where the tree raised it."""
    surest = profile is not None and profile.branch.unforked == UNFORKED_ARGMAX
    best = (Strategy.ARGMAX, Strategy.BRANCH) if surest else (Strategy.ARGMAX,)
    if step.strategy in best or step.origin is not Origin.SAMPLED:
        return ""
    base = f"{profile.base.temperature:.2f} → " if profile else ""
    return f"T {base}{step.temperature:.2f}"


def _numbers(value: float, bound: float) -> tuple[str, str]:
    """Return two numbers with two decimals, or with as many as they need to differ."""
    for digits in (2, 3, 4):
        shown = f"{value:.{digits}f}", f"{bound:.{digits}f}"
        if value == bound or shown[0] != shown[1]:
            break
    return shown
