"""The totals of a generation: text, counts and rates, added up from its `Step`s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from .step import Origin, Step, Strategy


class Summary:
    """Totals of the steps added so far."""

    def __init__(self, prompt_tokens: int = 0) -> None:
        """Begin with no step.

        Args:
            prompt_tokens: tokens of the prompt, for `to_dict`.
        """
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.inserted_tokens = 0
        self.insertions = 0
        self.branches = 0
        self.choices = 0
        """How many tokens or rollouts the user chose."""
        self.roll_backs = 0
        """How many tokens were drawn and taken back."""
        self.strategies: Counter[Strategy] = Counter()
        self.finish_reason: str | None = None
        self._pieces: list[str] = []
        self._first_time = 0.0
        # If an answer begins with a fork, the tokens of the winner all come at once, after the
        # rollouts. No speed can be told from them, so it is counted from after them.
        self._came_first = 0
        self._came_first_time = 0.0
        self._in_first_fork = False
        self._last_time = 0.0
        self._entropy = 0.0
        self._varentropy = 0.0

    @classmethod
    def of(cls, steps: Iterable[Step], prompt_tokens: int = 0) -> Summary:
        """Return the totals of some steps."""
        summary = cls(prompt_tokens)
        for step in steps:
            summary.add(step)
        return summary

    def add(self, step: Step) -> None:
        """Count one more step."""
        self._clock(step)
        self.completion_tokens += 1
        self.inserted_tokens += step.origin is Origin.INSERTED
        self.branches += step.branch is not None
        self.roll_backs += step.rolled_back
        if step.rolled_back:  # an intervention begins here
            self.insertions += step.origin is Origin.INSERTED
            self.choices += step.origin is Origin.CHOSEN
        self.strategies[step.strategy] += 1
        self.finish_reason = step.finish_reason
        self._pieces.append(step.text)
        self._entropy += step.entropy
        self._varentropy += step.varentropy

    def _clock(self, step: Step) -> None:
        first = not self.completion_tokens
        if first:
            self._first_time = step.time
            self._in_first_fork = step.branch is not None
        elif step.branch is not None or step.origin not in (Origin.BRANCH, Origin.CHOSEN):
            self._in_first_fork = False
        if first or self._in_first_fork:
            self._came_first += 1
            self._came_first_time = step.time
        self._last_time = step.time

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    @property
    def tokens_per_second(self) -> float:
        """`decoded_tokens` over `decoding_time`; 0 if there are none yet."""
        return self.decoded_tokens / self.decoding_time if self.decoding_time else 0.0

    @property
    def decoded_tokens(self) -> int:
        """Tokens after the first, or after the first fork if the answer begins with one."""
        return self.completion_tokens - self._came_first

    @property
    def decoding_time(self) -> float:
        """Seconds in which the `decoded_tokens` came."""
        return self._last_time - self._came_first_time

    @property
    def time_to_first_token(self) -> float:
        """Seconds from the beginning, prefill included."""
        return self._first_time

    @property
    def interventions(self) -> str:
        """The interventions in words, such as "1 insertion, 2 forks"; empty if there were none."""
        counts = {
            "insertion": self.insertions,
            "fork": self.branches,
            "choice": self.choices,
            "roll-back": self.roll_backs,
        }
        return ", ".join(f"{n} {name}{'s' if n > 1 else ''}" for name, n in counts.items() if n)

    @property
    def mean_entropy(self) -> float:
        """Mean H of the steps, in bits."""
        return self._entropy / max(1, self.completion_tokens)

    @property
    def mean_varentropy(self) -> float:
        """Mean V of the steps, in bits²."""
        return self._varentropy / max(1, self.completion_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return all totals as one JSON-ready record; traces end with it."""
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
                "inserted_tokens": self.inserted_tokens,
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            },
            "interventions": {
                "insertions": self.insertions,
                "branches": self.branches,
                "choices": self.choices,
                "roll_backs": self.roll_backs,
            },
            "strategies": {str(s): self.strategies[s] for s in Strategy if self.strategies[s]},
            "mean_entropy": self.mean_entropy,
            "mean_varentropy": self.mean_varentropy,
            "timings": {
                "time_to_first_token": self.time_to_first_token,
                "tokens_per_second": self.tokens_per_second,
                "total": self._last_time,
            },
        }
