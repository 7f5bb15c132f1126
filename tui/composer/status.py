"""The status line: the state of the model, its speed, context, seed, sampler and profile."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from ..answer import Answer

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


REFUSALS = {
    State.LOADING: "the model is still loading",
    State.READING: "an answer is being generated: Escape stops it",
    State.GENERATING: "an answer is being generated: Escape stops it",
    State.FAILED: "there is no model: Ctrl+L chooses another, Ctrl+Q quits",
}
"""Why the model cannot be asked now."""


class StatusLine(Widget):
    """These values in one line, as far as they are known."""

    state: reactive[State] = reactive(State.READY)
    progress: reactive[str] = reactive("")
    """Of reading the prompt, or of loading the model."""
    basis: reactive[str] = reactive("")
    """Of the confidence in an answer that was chosen among several; shown when it has ended."""
    context_length: reactive[int] = reactive(0)
    """Tokens that the model can hold; 0 while it is unknown."""
    sampler: reactive[str] = reactive("")
    model: reactive[str] = reactive("")
    # It changes with every token, and is drawn at the pace of the gauges.
    context_used: reactive[int] = reactive(0, repaint=False)
    answer: reactive[Answer | None] = reactive(None, always_update=True, init=False)
    _began = 0.0  # to load

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

    def render(self) -> Content:
        answer = self.answer or Answer()
        summary, profile = answer.summary, answer.profile.name
        seed, model = str(answer.seed), Path(self.model).name
        named = profile.casefold() in model.casefold()
        parts = [
            f"{self.state.value} {self.progress}".strip(),
            "" if self.state.busy else self.basis,
            f"{summary.tokens_per_second:.1f} tok/s" if summary.tokens_per_second else "",
            f"{summary.tokens_per_pass:.1f} tokens/forward pass" if summary.accepted else "",
            f"context {self.context_used}/{self.context_length or '?'}",
            "" if answer.seed is None else f"seed {seed if len(seed) < LONG else seed[:4] + '…'}",
            self.sampler,
            model,
            "" if named else f"profile {profile}",
        ]
        known = list(filter(None, parts))
        while len(known) > 1 and len(" · ".join(known)) > self.content_size.width:
            known.pop()  # none is shown in part
        return Content(" · ".join(known))
