"""The totals of a generation, added up from its `Step`s."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from .constraints.fields import Field, fields_of
from .palette import step_as_html
from .profiles.confidence import AnswerMetrics, scores_of
from .step import LOOP, NOT_OF_THE_MODEL, Origin, Step, Strategy

LOOP_ENDING = "it repeated itself"
REPETITION_LENGTH = 4  # tokens in a row that the same answer has already


class Summary:
    """Totals of the steps added so far."""

    def __init__(self, prompt_tokens: int = 0) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0  # tokens of the answer, inserted and retrieved ones included
        self.inserted_tokens = 0  # tokens of thinking texts
        self.insertions = 0
        self.retrieved_tokens = 0  # tokens of passages of the user's notes
        self.retrievals = 0  # passages of the user's notes
        self.forks = 0  # forks of which a branch became the text
        self.choices = 0  # tokens or branches that the user chose
        self.roll_backs = 0  # tokens that were drawn and discarded
        self.proposed = 0  # tokens that speculation proposed
        self.accepted = 0  # tokens of the answer that speculation had proposed
        self.strategies: Counter[Strategy] = Counter()
        self.finish_reason: str | None = None
        self.stopped: str | None = None  # as in `Step`
        self._steps: list[Step] = []
        self._first_time = 0.0
        # The tokens of a fork's winner come at once, and so do accepted proposals. If an answer
        # begins with either, its speed is counted from after them.
        self._came_first = 0
        self._came_first_time = 0.0
        self._in_first_fork = False
        self._in_first_run = False
        self._last_time = 0.0

    @classmethod
    def of(cls, steps: Iterable[Step], prompt_tokens: int = 0) -> Summary:
        summary = cls(prompt_tokens)
        for step in steps:
            summary.add(step)
        return summary

    def add(self, step: Step) -> None:
        self._clock(step)
        self.completion_tokens += 1
        self.inserted_tokens += step.origin is Origin.INSERTED
        self.retrieved_tokens += step.origin is Origin.RETRIEVED
        self.retrievals += step.source is not None
        self.forks += step.fork is not None
        self.roll_backs += step.rolled_back
        self.proposed += step.proposed
        self.accepted += step.accepted
        if step.rolled_back:  # an intervention begins here
            self.insertions += step.origin is Origin.INSERTED
            self.choices += step.origin is Origin.CHOSEN
        self.strategies[step.strategy] += 1
        self.finish_reason, self.stopped = step.finish_reason, step.stopped
        self._steps.append(step)

    def _clock(self, step: Step) -> None:
        first = not self.completion_tokens
        if first:
            self._first_time = step.time
            self._in_first_fork = step.fork is not None
        elif step.fork is not None or step.origin not in (Origin.BRANCH, Origin.CHOSEN):
            self._in_first_fork = False
        self._in_first_run = first or (self._in_first_run and bool(step.accepted))
        if self._in_first_run or self._in_first_fork:
            self._came_first += 1
            self._came_first_time = step.time
        self._last_time = step.time

    @property
    def _own(self) -> list[Step]:
        return [step for step in self._steps if step.origin not in NOT_OF_THE_MODEL]

    @property
    def text(self) -> str:
        return "".join(step.text for step in self._steps)

    @property
    def tokens_per_second(self) -> float:
        """`decoded_tokens` over `decoding_time`; 0 if there are none yet."""
        return self.decoded_tokens / self.decoding_time if self.decoding_time else 0.0

    @property
    def decoded_tokens(self) -> int:
        """Tokens after those that came first: one, or those of a fork or of accepted proposals."""
        return self.completion_tokens - self._came_first

    @property
    def decoding_time(self) -> float:
        return self._last_time - self._came_first_time

    @property
    def time_to_first_token(self) -> float:
        return self._first_time

    @property
    def ending(self) -> str:
        """Why the answer ended, in words; `finish_reason` where there is no more to say."""
        return LOOP_ENDING if self.stopped == LOOP else str(self.finish_reason)

    @property
    def interventions(self) -> str:
        """The interventions in words, such as "1 insertion, 2 forks"; empty if there were none."""
        counts = {
            "insertion": self.insertions,
            "passage": self.retrievals,
            "fork": self.forks,
            "choice": self.choices,
            "rewind": self.roll_backs,
        }
        return ", ".join(f"{n} {name}{'s' if n > 1 else ''}" for name, n in counts.items() if n)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens for each pass that computed any: 1 without accepted proposals."""
        return self.completion_tokens / max(1, self.completion_tokens - self.accepted)

    @property
    def scores(self) -> dict[str, float]:
        """Those of `SCORES` that are known, of the model's own tokens, as they are published."""
        return scores_of(self.metrics)

    @property
    def mean_entropy(self) -> float:
        """Bits, over the model's own tokens; 0 without any, as `mean_varentropy`."""
        return self.scores.get("mean_entropy", 0.0)

    @property
    def mean_varentropy(self) -> float:
        return self.scores.get("mean_varentropy", 0.0)

    @property
    def metrics(self) -> AnswerMetrics:
        return AnswerMetrics.of(self._own)

    @property
    def confidence(self) -> float:
        """The geometric mean of the probabilities of the model's own tokens; 0 without any."""
        mean = self.scores.get("mean_logprob")
        return 0.0 if mean is None else math.exp(mean)

    @property
    def strains(self) -> list[float]:
        """Bits, of the tokens that a constraint was put on; see `Step.strain`."""
        return [step.strain for step in self._own if step.strain is not None]

    @property
    def fields(self) -> list[Field]:
        """Those of a complete JSON answer that a constraint was put on; none otherwise."""
        return fields_of(self._own) if self.finish_reason == "stop" else []

    def _repr_html_(self) -> str:
        """Return the answer for a notebook: its tokens in colour, and its scores."""
        answer = "".join(map(step_as_html, self._steps))
        scores = ", ".join(f"{name} {value:.3g}" for name, value in self.scores.items())
        wrapped = f'<div style="white-space: pre-wrap">{answer}</div>'
        return f"{wrapped}<small>{self.completion_tokens} tokens; {scores}</small>"

    def to_dict(self) -> dict[str, Any]:
        totals: dict[str, Any] = {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "stopped": self.stopped,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
                "inserted_tokens": self.inserted_tokens,
                "retrieved_tokens": self.retrieved_tokens,
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            },
            "interventions": {
                "insertions": self.insertions,
                "retrievals": self.retrievals,
                "forks": self.forks,
                "choices": self.choices,
                "roll_backs": self.roll_backs,
            },
            "speculation": {
                "proposed": self.proposed,
                "accepted": self.accepted,
                "tokens_per_pass": self.tokens_per_pass,
            },
            "strategies": {str(s): self.strategies[s] for s in Strategy if self.strategies[s]},
            "confidence": self.confidence,
            "scores": self.scores,
            "timings": {
                "time_to_first_token": self.time_to_first_token,
                "tokens_per_second": self.tokens_per_second,
                "total": self._last_time,
            },
        }
        if strains := self.strains:
            totals["strain"] = {"mean": fmean(strains), "largest": max(strains)}
            totals["fields"] = [field.to_dict() for field in self.fields]
        return totals


def forward_tokens(steps: Sequence[Step]) -> tuple[int, int]:
    """Return how many generated tokens an answer committed, and how many it discarded.

    At a fork all tokens of all branches went through the model, and those of the lookahead; only
    the winner's are steps.
    """
    discarded = 0
    for place, step in enumerate(steps):
        discarded += step.rolled_back
        if step.fork is not None:
            winner = len(step.fork.branches[step.fork.winner].tokens)
            followed = sum(len(branch.tokens) for branch in step.fork.branches)
            committed = min(winner, len(steps) - place)
            discarded += followed - committed + step.fork.lookahead_tokens
    return len(steps), discarded


def repetition(texts: Iterable[Sequence[int]], length: int = REPETITION_LENGTH) -> float:
    """Return the share of the runs of token ids that the same text had already; 0 without any."""
    total = repeated = 0
    for tokens in texts:
        runs = [tuple(tokens[i : i + length]) for i in range(len(tokens) - length + 1)]
        total += len(runs)
        repeated += len(runs) - len(set(runs))
    return repeated / total if total else 0.0
