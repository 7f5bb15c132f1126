"""One line that explains: the token under the cursor, the newest one, or how the answer ended."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from entropix_mlx.palette import printable
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Fork, Step, Strategy
from entropix_mlx.summary import Summary
from entropix_mlx.traces.explain import Explanation, explain, standing

from ..drawing import DIM
from ..styles import COLOURS

ENDINGS = {"stop": "end of text", "length": "the limit was reached"}
BREAK = 12
"""Cells that the break of a line may leave empty: a longest word."""
HINTS = ("why these tokens, and other ways", "why, and other ways", "why?")
"""What the key is for that goes to the tokens, as far as there is room."""


def draw_why(why: Explanation, width: int) -> Content:
    """Return an explanation in a line; what does not fit is left out: why comes before what."""
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
    """Return how an answer ended, how long and fast it was, its seed, and what to do next.

    Args:
        summary: of the answer.
        seed: that of the answer, where it is known.
        key: the one that goes to the tokens.
        width: in cells; of what to do next, only what fits is told.
    """
    parts = [
        ENDINGS.get(summary.finish_reason or "", "stopped"),
        f"{summary.completion_tokens} tokens",
        f"{summary.tokens_per_second:.1f} tok/s" if summary.tokens_per_second else "",
        "" if seed is None else f"seed {seed}",
    ]
    told = " · ".join(filter(None, parts))
    lines = [f"{told} · {key}: {hint}" for hint in HINTS]
    short = " · ".join(parts[:2])  # the status line tells the rest, too
    lines += [f"{short} · {key}: {HINTS[-1]}", told]
    return Content.styled(next((line for line in lines if len(line) <= width), short), DIM)


def draw_leader(fork: Fork) -> Content:
    """Return how many ways are being followed, and the one that leads."""
    leader = fork.branches[fork.winner]
    text = printable(leader.text).replace("\n", "⏎")
    ahead = f"ahead by {standing(leader)}" if fork.winner else "none clearly ahead of the first"
    told = f" following {len(fork.branches)} ways; {ahead}: {text}"
    return Content.assemble(("▲ fork", COLOURS[Strategy.BRANCH]), told)


OUTSIDE, INSIDE = "Tab", "← →"
"""The keys that go to a token from the field, and from another token."""


class Why(Static):
    """Says of a token what was decided, what it did, why, and what it nearly was."""

    def __init__(self, profile: Profile, *, id: str) -> None:
        super().__init__(id=id)
        self.seed: int | None = None
        """That of the answer."""
        self._key = OUTSIDE
        self.thresholds: Profile | None = profile
        """The profile that decides; None where the sampler has no thresholds."""
        self._summary = Summary()
        self._newest: Step | None = None
        self._pointed: Step | None = None
        self._racing: Fork | None = None
        self._settled = True  # no more steps are on their way

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        """Tell how an answer ended."""
        self._summary = Summary.of(steps)
        self._newest, self._racing, self._settled = None, None, True
        self.draw()

    def name_key(self, inside: bool) -> None:
        """Name the key that goes to a token from where the user is: inside the tokens, or not."""
        self._key = INSIDE if inside else OUTSIDE
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        """Take more steps of the answer, the last of which the next `draw` explains."""
        for step in steps:
            self._summary.add(step)
        self._newest, self._racing, self._settled = steps[-1], None, False

    def race(self, fork: Fork) -> None:
        """Tell of the ways of a fork, until the next steps come; the next `draw` shows it."""
        self._racing = fork

    def point(self, step: Step | None) -> None:
        """Explain a token, or the newest again."""
        self._pointed = step
        self.draw()

    def on_resize(self) -> None:
        """Draw for the new width."""
        self.draw()

    def draw(self) -> None:
        """Draw the line, where it is shown at all."""
        if self.content_size.width:
            self.update(self._content(), layout=False)

    def _content(self) -> Content:
        if self._racing is not None and self._pointed is None:
            return draw_leader(self._racing)
        step = self._pointed or self._newest
        if step is not None and (self._pointed or not self._settled):
            width = self.content_size.width
            room = width * self.content_size.height - (self.content_size.height - 1) * BREAK
            return draw_why(explain(self.thresholds, step), room)
        if self._summary.completion_tokens:
            return draw_ending(self._summary, self.seed, self._key, self.content_size.width)
        return Content()
