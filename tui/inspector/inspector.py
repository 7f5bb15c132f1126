"""One token in detail: its alternatives, its measurements, and the decision."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from entropix_mlx.chat.events import StepRead
from entropix_mlx.palette import NOT_MEASURED, SWATCHES
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.records import printable
from entropix_mlx.step import AttentionMap, Branch, DrawDistribution, Fork, Step, Strategy
from entropix_mlx.traces.explain import ORIGINS, Case, explain
from entropix_mlx.traces.scales import SCALES

from ..drawing import DIM, bar
from ..styles import COLOURS, NAMED, STYLES, most_looked_at

HEADING = Style(bold=True)
END = "∅ the end of the text"
"""A token without a text after which the answer ends."""
NONE = -1
"""In place of the number of an alternative: none is selected."""
DRAW_HEADING = "model → drawn from"
SCORE_WIDTH = 11
"""Cells for the score of a branch."""
SELECT_BRANCH = "↓ selects another branch"
SCORES = "score against the first, in nats/token"
CASE_WIDTH = 11
"""Cells that the longest strategy of a table takes, with its glyph."""


class Inspector(VerticalScroll):
    """Shows the token under the cursor."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, can_focus=False)
        self.page = Static()
        self._step: Step | None = None
        self._profile: Profile | None = None
        self._distribution: DrawDistribution | None = None
        self.attention: AttentionMap | None = None
        """What the token looked at, if that is known."""
        self._selected = 0
        self.has_model = True
        """Whether there is a model, which can continue with an alternative."""

    def compose(self) -> ComposeResult:
        yield self.page

    @property
    def _losing(self) -> list[Branch]:
        """The branches that can be selected: they come after the alternatives."""
        fork = self._step.fork if self._step else None
        branches = fork.branches if fork else ()
        return [branch for n, branch in enumerate(branches) if fork and n != fork.winner]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that stand here with the selection; empty if there is none."""
        alternatives = self._step.top_logprobs if self._step else ()
        branches = (branch.tokens for branch in self._losing)
        options = [*((alternative.token,) for alternative in alternatives), *branches]
        return options[self._selected] if 0 <= self._selected < len(options) else ()

    @property
    def _branch(self) -> Branch | None:
        number = self._selected - len(self._step.top_logprobs if self._step else ())
        return self._losing[number] if 0 <= number < len(self._losing) else None

    @property
    def hint(self) -> str:
        """What the user can do with the selection; empty where there is no model."""
        if not self.has_model:
            return ""
        if self.chosen:
            return "Enter: continue with it"
        more = "" if self._distribution else " · b: what it was drawn from"
        return f"↑ ↓ choose{more}" + ("" if self.attention else " · v: what it looked at")

    @property
    def chosen(self) -> bool:
        """Whether the selection differs from the token, or from the winning branch."""
        return self._step is not None and self.tokens not in ((), (self._step.token,))

    def show(self, step: Step, profile: Profile | None) -> None:
        self._step, self._profile = step, profile
        self._distribution = self.attention = None
        tokens = [alternative.token for alternative in step.top_logprobs]
        self._selected = tokens.index(step.token) if step.token in tokens else NONE
        self._draw()

    def show_read(self, event: StepRead) -> None:
        """Show what a step was drawn from or looked at, if it is still under the cursor."""
        if event.step == self._step:
            if isinstance(event.found, AttentionMap):
                self.attention = event.found
            else:
                self._distribution = event.found
            self._draw()

    @property
    def shares(self) -> list[float]:
        """The attention that each token before this one has: the mean of all layers and heads."""
        return [] if self.attention is None else self.attention.shares()

    def move(self, by: int) -> None:
        if self._step is not None:
            last = max(0, len(self._step.top_logprobs) + len(self._losing) - 1)
            self._selected = min(max(self._selected + by, 0), last)
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        step, profile = self._step, self._profile
        if step is None:
            return
        width = max(30, self.content_size.width - 1)
        text = token_text(step.text) if step.text or not step.finish_reason else END
        title = f"token {step.index + 1}: {text} (id {step.token})"
        branch, fork = self._branch, step.fork
        hint = SELECT_BRANCH if self.has_model and branch is None else self.hint
        found = self._distribution
        alternatives = [draw_alternatives(step, self._selected, width, found)]
        if found is not None:
            alternatives.append(draw_steps(step, found))
        if step.top_logprobs and self.hint and branch is None:
            alternatives.append(Content.styled(self.hint, DIM))
        parts = [
            Content.styled(title, HEADING),
            Content("\n").join(alternatives),
            draw_attention(self.attention, self.shares, width) if self.attention else Content(),
            draw_branches(fork, width, branch, hint) if fork else Content(),
            draw_decision(step, profile),
            draw_measurements(step),
        ]
        self.page.update(Content("\n\n").join(filter(None, parts)))


def token_text(text: str) -> str:
    """Return a token's text with its spaces and line ends visible."""
    return printable(text).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or "∅"


def draw_alternatives(
    step: Step, selected: int, width: int, distribution: DrawDistribution | None = None
) -> Content:
    """Return the most probable tokens with their probabilities as bars.

    With a distribution, the bar is what they were drawn with, and tokens that were cut are dim.
    """
    if not step.top_logprobs:
        return Content.styled("alternatives were not recorded", DIM)
    cells = max(4, width - (26 if distribution is None else 35))
    drawn = {c.token: c for c in distribution.candidates} if distribution else {}
    lines = [] if distribution is None else [Content.styled(DRAW_HEADING.rjust(width), DIM)]
    for number, alternative in enumerate(step.top_logprobs):
        probability = math.exp(alternative.logprob)
        pointer = "▸" if number == selected else " "
        mark = "✓" if alternative.token == step.token else " "
        text = token_text(alternative.text)[:12].ljust(12)
        candidate = drawn.get(alternative.token)
        cut = candidate is not None and candidate.removed_by
        shown = probability if candidate is None else candidate.drawn
        line = f"{pointer}{mark} {text} {bar(shown, 1.0, cells)} {probability:6.1%}"
        if candidate is not None:
            line += " ✗ cut" if cut else f" → {shown:6.1%}"
        weight = HEADING if number == selected else DIM if cut else Style()
        lines.append(Content.styled(line, weight))
    return Content("\n").join(lines)


def draw_attention(attention: AttentionMap, shares: Sequence[float], width: int) -> Content:
    of = f"mean of {len(attention.layers)} layers, {len(attention.layers[0])} heads each"
    lines = [Content.styled("what it looked at most", HEADING), Content.styled(of, DIM)]
    most = most_looked_at(shares)[:NAMED]
    for index in most:
        where = "answer" if index >= attention.prompt else "prompt"
        text = token_text(attention.texts[index])[:12].ljust(12)
        drawn = bar(shares[index], shares[most[0]], max(4, width - 29))
        lines.append(Content(f"{text} {drawn} {shares[index]:6.1%} {where}"))
    lines.append(Content.styled(f"{shares[0]:.0%} rests on the first token", DIM))
    return Content("\n").join(lines)


def draw_steps(step: Step, distribution: DrawDistribution) -> Content:
    """Return what each step of the draw did: first the temperature, then what filters cut."""
    values = {"min-p": f"{step.min_p:.2f}", "top-k": f"{step.top_k}", "top-p": f"{step.top_p:.2f}"}
    cuts = [
        f"{name} {values.get(name, '')}".rstrip() + f" cuts {share:.1%}"
        for name, share in distribution.removed.items()
    ]
    changed = any(c.adjusted != c.model for c in distribution.candidates)
    parts = ["biases, penalties"] if changed else []
    parts += [f"T {step.temperature:.2f}", *(cuts or ["nothing is cut"])]
    return Content.styled(" → ".join(parts), DIM)


def draw_measurements(step: Step) -> Content:
    lines = [f"{s.label:16}{_measured(step.metrics[name], s.unit)}" for name, s in SCALES.items()]
    lines += [
        f"{'log p':16}{step.logprob:9.4f} nats",
        f"{'position score':16}{step.position_score:9.4f}",
    ]
    if step.strain is not None:
        allowed = ", ".join(f"{a.text!r} {math.exp(a.logprob):.0%}" for a in step.allowed)
        lines += [f"{'strain':16}{step.strain:9.4f} bits", printable(f"allowed: {allowed}")]
    return Content("\n".join(lines))


def _measured(value: float, unit: str) -> str:
    return NOT_MEASURED if math.isnan(value) else f"{value:9.4f} {unit}"


def draw_decision(step: Step, profile: Profile | None) -> Content:
    """Return the decision, all conditions of each strategy, and the parameters used."""
    why = explain(profile, step)
    origin = "" if step.fork else f", {ORIGINS[step.origin]}"  # the outcome says it of a fork
    heading = f"{why.heading}{origin}"
    lines = [Content.styled(heading, STYLES[step.strategy]) + Content(why.outcome)]
    if not why.cases:
        lines.append(Content("not decided by thresholds"))
    elif why.reason is None:
        lines.append(Content("decided by other thresholds than these"))
    if why.cases:
        lines.append(Content.styled("✓ holds, ✗ does not (by how much)", DIM))
    for case in why.cases:
        lines += _draw_case(case, decided=case is why.reason)
    if step.rolled_back:
        lines.append(Content("rewound: replaces a sampled token"))
    used = f"T {step.temperature:.2f} top-p {step.top_p:.2f} top-k {step.top_k or 'off'}"
    lines.append(Content(f"{used} min-p {step.min_p:.2f}"))
    return Content("\n").join(lines)


def _draw_case(case: Case, decided: bool) -> list[Content]:
    """Return a line for each condition of a strategy, the first of them with its name."""
    name = f"{SWATCHES[case.strategy].glyph} {case.strategy}".ljust(CASE_WIDTH)
    weight = HEADING if decided else DIM
    conditions = [
        Content.styled(
            f"{'✓' if condition.met else '✗'} {condition.verdict} ({condition.distance:.2f})",
            weight,
        )
        for condition in case.conditions
    ] or [Content.styled("✓ where no other fits", weight)]
    names = [Content.styled(name, COLOURS[case.strategy]), *[Content(" " * CASE_WIDTH)] * 2]
    return [left + right for left, right in zip(names, conditions, strict=False)]


def draw_branches(
    fork: Fork, width: int, selected: Branch | None = None, hint: str = "", running: bool = False
) -> Content:
    """Return the branches of a fork as a tree, with their scores against the first.

    The text of the selected branch is shown in full, the others cut at the width: at the end, or at
    the beginning while they grow.
    """
    count, style = len(fork.branches), COLOURS[Strategy.BRANCH]
    length = max(len(branch.tokens) for branch in fork.branches)
    state = f", token {length}" if running else f" compared, chosen by {fork.chosen_by}"
    heading = f"{SWATCHES[Strategy.BRANCH].glyph} {count} branches{state}"
    lines = [Content.styled(heading, style), Content.styled(SCORES, DIM)]
    room = max(1, width - SCORE_WIDTH - 2)
    for number, branch in enumerate(fork.branches):
        stem = "└" if number == count - 1 else "├"
        mark = "✓" if number == fork.winner else "▸" if branch is selected else " "
        text = printable(branch.text).replace("\n", "⏎")
        if branch is not selected:
            text = text[-room:] if running else text[:room]
        line = f"{stem}{mark}{_score(branch, first=number == 0):<{SCORE_WIDTH}}{text}"
        lines.append(Content.styled(line, DIM if mark == " " else HEADING))
    return Content("\n").join([*lines, Content.styled(hint, DIM)] if hint else lines)


def _score(branch: Branch, first: bool) -> str:
    """Return the score of a branch against the first, in nats/token, in few cells."""
    if branch.lead is None:  # an older record
        return f"{branch.mean_logprob:6.2f}"
    return "first" if first else f"{branch.lead:+.2f}±{branch.error or 0.0:.2f}"
