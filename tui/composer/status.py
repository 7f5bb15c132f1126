"""The status line: the state of the model, its speed, context, seed, sampler and profile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step
from entropix_mlx.summary import Summary

LONG = 8
"""From so many digits on, a seed is shortened; the end of an answer names it in full."""
LOADING_SECONDS = 0.25
"""The pace at which the seconds are shown while a model loads."""


class State(Enum):
    """The state of the model; the value is its text in the status line."""

    LOADING = "loading the model …"
    READY = ""
    READING = "reading the prompt"
    GENERATING = "generating"
    FAILED = "no model"

    @property
    def busy(self) -> bool:
        return self in (State.READING, State.GENERATING)

    @property
    def refusal(self) -> str:
        """Why the model cannot be asked now; empty if it can."""
        return _REFUSALS.get(self, "")


_REFUSALS = {
    State.LOADING: "the model is still loading",
    State.READING: "an answer is being generated: Escape stops it",
    State.GENERATING: "an answer is being generated: Escape stops it",
    State.FAILED: "there is no model: F5 chooses another, Ctrl+Q quits",
}


class StatusLine(Widget):
    """These values in one line, as far as they are known."""

    state: reactive[State] = reactive(State.READY)
    progress: reactive[str] = reactive("")
    """Of reading the prompt, or of loading the model."""
    basis: reactive[str] = reactive("")
    """Of the confidence in an answer that was chosen among several; shown when it has ended."""
    context_length: reactive[int] = reactive(0)
    """Tokens that the model can hold; 0 while it is unknown."""
    seed: reactive[int | None] = reactive(None)
    sampler: reactive[str] = reactive("")
    profile: reactive[str] = reactive("")
    model: reactive[str] = reactive("")
    # These change with every token, and are drawn at the pace of the gauges.
    context_used: reactive[int] = reactive(0, repaint=False)
    speed: reactive[float] = reactive(0.0, repaint=False)

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._summary = Summary()
        self._began = 0.0  # to load

    def on_mount(self) -> None:
        self.set_interval(LOADING_SECONDS, self._count_loading)

    def _count_loading(self) -> None:
        if self.state is State.LOADING:
            self.progress = f"{time.monotonic() - self._began:.1f} s"

    def watch_state(self) -> None:
        """Forget the progress of an earlier prompt; other keys do something now."""
        self.progress = ""
        if self.state.busy:
            self.basis = ""
        self._began = time.monotonic()
        if self.is_attached:
            self.screen.refresh_bindings()

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        self._summary = Summary.of(steps)
        self.profile = profile.name
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._summary.add(step)
        self.context_used += len(steps)

    def draw(self) -> None:
        self.speed = self._summary.tokens_per_second
        self.refresh()

    def render(self) -> Content:
        seed, model = str(self.seed), Path(self.model).name
        named = self.profile.casefold() in model.casefold()
        parts = [
            f"{self.state.value} {self.progress}".strip(),
            "" if self.state.busy else self.basis,
            f"{self.speed:.1f} tok/s" if self.speed else "",
            f"{self._summary.tokens_per_pass:.1f} tokens/forward pass"
            if self._summary.accepted
            else "",
            f"context {self.context_used}/{self.context_length or '?'}",
            "" if self.seed is None else f"seed {seed if len(seed) < LONG else seed[:4] + '…'}",
            self.sampler,
            model,
            "" if named else f"profile {self.profile}",
        ]
        known = list(filter(None, parts))
        while len(known) > 1 and len(" · ".join(known)) > self.content_size.width:
            known.pop()  # none is shown in part
        return Content(" · ".join(known))
