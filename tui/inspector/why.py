"""The line that explains a token, the one under the cursor or the newest, or an answer's end."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from entropix_mlx.records import printable
from entropix_mlx.step import Fork, Strategy
from entropix_mlx.summary import LOOP_ENDING, Summary
from entropix_mlx.traces.explain import Explanation, explain, standing

from ..answer import Answer
from ..drawing import DIM
from ..styles import COLOURS

ENDINGS = {"stop": "end of text", "length": "token limit"}
BREAK = 12
"""Cells that the break of a line may leave empty: a longest word."""
OUTSIDE, INSIDE = "Tab", "n"
"""The keys that go to an unsure place from the field, and from another token."""


class Why(Static):
    """Explains a token: the decision, its reasons and effect, and the near miss."""

    answer: reactive[Answer | None] = reactive(None, always_update=True, init=False, repaint=False)
    inside: reactive[bool] = reactive(False, init=False, repaint=False)
    """Whether the tokens have the focus: the key that goes to a place depends on it."""

    def on_resize(self) -> None:
        self.watch_answer()

    def watch_answer(self) -> None:
        if self.answer is not None and self.content_size.width:
            self.update(self._content(self.answer), layout=False)

    def watch_inside(self) -> None:
        self.watch_answer()

    def _content(self, answer: Answer) -> Content:
        step, width = answer.pointed or answer.newest, self.content_size.width
        if answer.fork is not None and answer.pointed is None:
            return draw_leader(answer.fork)
        if step is not None:
            room = width * self.content_size.height - (self.content_size.height - 1) * BREAK
            return draw_why(explain(answer.thresholds, step), room)
        if answer.steps:
            hint = places_hint(answer.places, INSIDE if self.inside else OUTSIDE)
            return draw_ending(answer.summary, answer.seed, hint, width)
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


def places_hint(places: int, key: str) -> str:
    """Return how many unsure places there are, and the key that goes there."""
    if not places:
        return f"{key}: why?"
    return f"{places} unsure place{'s' if places > 1 else ''} · {key}"


def draw_ending(summary: Summary, seed: int | None, hint: str, width: int) -> Content:
    """Return the end of an answer, its length, and as much of the rest as fits before a hint."""
    parts = [
        LOOP_ENDING if summary.stopped else ENDINGS.get(summary.finish_reason or "", "stopped"),
        f"{summary.completion_tokens} tokens",
        "" if seed is None else f"seed {seed}",
        summary.interventions,
        f"{summary.tokens_per_second:.1f} tok/s" if summary.tokens_per_second else "",
    ]
    known = list(filter(None, parts))
    shorter = (known[:cut] for cut in range(len(known), 0, -1))
    lines = (" · ".join([*kept, hint]) for kept in shorter)
    return Content.styled(next((line for line in lines if len(line) <= width), hint), DIM)


def draw_leader(fork: Fork) -> Content:
    """Return the number of branches that are being compared, and the best so far."""
    leader = fork.branches[fork.winner]
    text = printable(leader.text).replace("\n", "⏎")
    best = f"best by {standing(leader)}" if fork.winner else "none clearly better than the first"
    comparison = f" comparing {len(fork.branches)} branches; {best}: {text}"
    return Content.assemble(("▲ fork", COLOURS[Strategy.BRANCH]), comparison)
