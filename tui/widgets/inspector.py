"""All about one token: its alternatives, its measurements, and why it was decided so."""

from __future__ import annotations

import math

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from entropix_mlx.palette import LOOKS, printable
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.step import Alternative, Branch, Step, Strategy

from ..drawing import DIM, SCALES, bar
from ..styles import STYLES

HEADING = Style(bold=True)


def token_text(text: str) -> str:
    """Return a token's text with its spaces and line ends visible."""
    return printable(text).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or "∅"


def draw_alternatives(step: Step, selected: int, width: int) -> Content:
    """Return the most probable tokens with their probabilities as bars."""
    if not step.top_logprobs:
        return Content.styled("alternatives were not recorded", DIM)
    cells = max(4, width - 26)
    lines = []
    for number, alternative in enumerate(step.top_logprobs):
        probability = math.exp(alternative.logprob)
        pointer = "▸" if number == selected else " "
        taken = "✓" if alternative.token == step.token else " "
        text = token_text(alternative.text)[:12].ljust(12)
        line = f"{pointer}{taken} {text} {bar(probability, 1.0, cells)} {probability:6.1%}"
        lines.append(Content.styled(line, HEADING if number == selected else Style()))
    return Content("\n").join(lines)


def draw_measurements(step: Step) -> Content:
    """Return every measurement with its unit."""
    lines = [f"{s.label:16}{step.metrics[name]:9.4f} {s.unit}" for name, s in SCALES.items()]
    lines += [
        f"{'margin':16}{step.margin:9.4f} of 1",
        f"{'log p':16}{step.logprob:9.4f} nats",
        f"{'confidence':16}{step.confidence:9.4f}",
    ]
    return Content("\n".join(lines))


def draw_decision(step: Step, profile: Profile) -> Content:
    """Return the strategy, which thresholds fired and by how much, and the parameters used."""
    look = LOOKS[step.strategy]
    lines = [Content.styled(f"{look.glyph} {step.strategy}, {step.origin}", STYLES[step.strategy])]
    lines += [Content(line) for line in _reasons(step, profile)]
    if step.rolled_back:
        lines.append(Content("a drawn token was taken back here"))
    used = f"T {step.temperature:.3f}  top-p {step.top_p:.3f}  top-k {step.top_k or 'off'}"
    lines.append(Content(f"{used}  min-p {step.min_p:.3f}"))
    return Content("\n").join(lines)


def _reasons(step: Step, profile: Profile) -> list[str]:
    if step.strategy is Strategy.SAMPLE:
        return ["a baseline policy: no thresholds"]
    row = next(row for row in table(profile) if row.strategy is step.strategy)
    if not row.bounds:
        return ["no other strategy's thresholds hold"]
    reasons = []
    for name, (low, high) in row.bounds.items():
        value = step.metrics[name]
        if math.isfinite(low):
            reasons.append(f"{name} {value:.3f} > {low:g} by {value - low:.3f}")
        if math.isfinite(high):
            reasons.append(f"{name} {value:.3f} < {high:g} by {high - value:.3f}")
    return reasons


def draw_branch(branch: Branch) -> Content:
    """Return the rollouts of a fork with their scores, the winner marked."""
    lines = [Content.styled(f"followed, chosen by {branch.chosen_by}", HEADING)]
    for number, rollout in enumerate(branch.rollouts):
        mark = "✓" if number == branch.winner else " "
        numbers = (
            f"  score {rollout.score:.2f}  log p {rollout.mean_logprob:.2f}"
            f"  H {rollout.mean_entropy:.2f}"
        )
        style = HEADING if number == branch.winner else Style()
        text = printable(rollout.text).replace("\n", "⏎")
        lines += [Content.styled(f"{mark} {text}", style), Content.styled(numbers, DIM)]
    return Content("\n").join(lines)


class Inspector(VerticalScroll):
    """Shows the token under the cursor."""

    DEFAULT_CSS = """
    Inspector { padding: 0 1; }
    Inspector Static { height: auto; margin-bottom: 1; }
    """

    def __init__(self, *, id: str) -> None:
        """Begin with no token."""
        super().__init__(id=id, can_focus=False)
        self._step: Step | None = None
        self._profile: Profile | None = None
        self._selected = 0

    def compose(self) -> ComposeResult:
        """Make the parts."""
        for name in ("token", "alternatives", "decision", "branch", "measurements"):
            yield Static(id=f"inspector-{name}")

    @property
    def alternative(self) -> Alternative | None:
        """The alternative that is selected."""
        if self._step is None or not self._step.top_logprobs:
            return None
        return self._step.top_logprobs[self._selected]

    def show(self, step: Step, profile: Profile) -> None:
        """Show a token, and what a profile's thresholds have to do with it."""
        self._step, self._profile, self._selected = step, profile, 0
        self._draw()

    def move(self, by: int) -> None:
        """Select another alternative."""
        if self._step is not None and self._step.top_logprobs:
            last = len(self._step.top_logprobs) - 1
            self._selected = min(max(self._selected + by, 0), last)
            self._draw()

    def on_resize(self) -> None:
        """Draw for the new width."""
        self._draw()

    def _draw(self) -> None:
        step, profile = self._step, self._profile
        if step is None or profile is None:
            return
        width = max(30, self.content_size.width - 1)
        title = f"token {step.index}: {token_text(step.text)} (id {step.token})"
        parts = {
            "token": Content.styled(title, HEADING),
            "alternatives": draw_alternatives(step, self._selected, width),
            "decision": draw_decision(step, profile),
            "measurements": draw_measurements(step),
            "branch": draw_branch(step.branch) if step.branch else Content(),
        }
        for name, content in parts.items():
            self.query_one(f"#inspector-{name}", Static).update(content)
