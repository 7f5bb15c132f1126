"""One answer of several that are generated together; no MLX."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..profiles.confidence import AnswerMetrics, Verdict
from ..settings import Settings
from ..step import Step


@dataclass
class BatchAnswer:
    """One answer of a batch, as far as it has come."""

    index: int
    prompt_tokens: int = 0
    settings: Settings | None = None
    """Those of this answer, with its profile and seed; None where they could not be used."""
    steps: list[Step] = field(default_factory=list)
    error: Exception | None = None
    """What ended the answer, if it was not its own end."""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(step.text for step in self.steps)

    @property
    def seed(self) -> int | None:
        """The seed of this answer; None where its settings could not be used."""
        return None if self.settings is None else self.settings.seed

    @property
    def certainty(self) -> Verdict | None:
        """Whether the answer is unsure; None where its profile has no threshold (`Settings`)."""
        if self.settings is None:
            return None
        return self.settings.verdict(AnswerMetrics.of(self.steps))
