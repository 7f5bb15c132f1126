"""The line that explains a token, the one under the cursor or the newest, or an answer's end."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from entropix_mlx.palette import printable
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Fork, Step, Strategy
from entropix_mlx.summary import LOOP_ENDING, Summary
from entropix_mlx.traces.explain import Explanation, explain, standing

from ..drawing import DIM
from ..styles import COLOURS

ENDINGS = {"stop": "end of text", "length": "token limit"}
BREAK = 12
"""Cells that the break of a line may leave empty: a longest word."""
OUTSIDE, INSIDE = "Tab", "← →"
"""The keys that go to a token from the field, and from another token."""
HINTS = ("why these tokens, and alternatives", "why, and alternatives", "why?")
"""The use of these keys, as far as there is room."""


class Why(Static):
    """Explains a token: the decision, its reasons and effect, and the near miss."""

    def __init__(self, profile: Profile, *, id: str) -> None:
        super().__init__(id=id)
        self.seed: int | None = None
        """The seed of the answer."""
        self._key = OUTSIDE
        self.thresholds: Profile | None = profile
        """The profile that decides; None where the sampler has no thresholds."""
        self._summary = Summary()
        self._newest: Step | None = None
        self._pointed: Step | None = None
        self._comparing: Fork | None = None
        self._ended = True  # no more steps will come

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        self._summary = Summary.of(steps)
        self._newest, self._comparing, self._ended = None, None, True
        self.draw()

    def name_key(self, inside: bool) -> None:
        """Name the key that goes to a token from inside the tokens, or from outside."""
        self._key = INSIDE if inside else OUTSIDE
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._summary.add(step)
        self._newest, self._comparing, self._ended = steps[-1], None, False

    def show_fork(self, fork: Fork) -> None:
        self._comparing = fork

    def point(self, step: Step | None) -> None:
        self._pointed = step
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        if self.content_size.width:
            self.update(self._content(), layout=False)

    def _content(self) -> Content:
        if self._comparing is not None and self._pointed is None:
            return draw_leader(self._comparing)
        step = self._pointed or self._newest
        if step is not None and (self._pointed or not self._ended):
            width = self.content_size.width
            room = width * self.content_size.height - (self.content_size.height - 1) * BREAK
            return draw_why(explain(self.thresholds, step), room)
        if self._summary.completion_tokens:
            return draw_ending(self._summary, self.seed, self._key, self.content_size.width)
        return Content()


def draw_why(why: Explanation, width: int) -> Content:
    """Return an explanation in a line, the reasons first where not everything fits."""
    whole, near = str(why), f"; {why.near_miss}" if why.near_miss else ""
    reasons = why.reasons or near
    dense = reasons.replace(" ✓", "").replace(" < ", "<").replace(" > ", ">")
    short = whole.removesuffix(near)
    lines = [whole, why.heading + reasons, why.heading + dense, short]
    if why.reasons:
        lines.insert(1, short)
    line = next((line for line in lines if len(line) <= width), why.heading)
    return Content.assemble((why.heading, COLOURS[why.strategy]), line[len(why.heading) :])


def draw_ending(summary: Summary, seed: int | None, key: str, width: int) -> Content:
    """Return the end of an answer, its length, speed and seed, and the longest hint that fits."""
    parts = [
        LOOP_ENDING if summary.stopped else ENDINGS.get(summary.finish_reason or "", "stopped"),
        f"{summary.completion_tokens} tokens",
        "" if seed is None else f"seed {seed}",
        summary.interventions,
        f"{summary.tokens_per_second:.1f} tok/s" if summary.tokens_per_second else "",
    ]
    known = list(filter(None, parts))
    lines = [" · ".join([*known, f"{key}: {hint}"]) for hint in HINTS]
    shorter = (known[:cut] for cut in range(len(known) - 1, 1, -1))
    lines += [" · ".join([*kept, f"{key}: {HINTS[-1]}"]) for kept in shorter]
    short = " · ".join(parts[:2])
    return Content.styled(next((line for line in lines if len(line) <= width), short), DIM)


def draw_leader(fork: Fork) -> Content:
    """Return the number of branches that are being compared, and the best so far."""
    leader = fork.branches[fork.winner]
    text = printable(leader.text).replace("\n", "⏎")
    best = f"best by {standing(leader)}" if fork.winner else "none clearly better than the first"
    comparison = f" comparing {len(fork.branches)} branches; {best}: {text}"
    return Content.assemble(("▲ fork", COLOURS[Strategy.BRANCH]), comparison)
