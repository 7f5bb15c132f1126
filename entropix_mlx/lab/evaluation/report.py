"""The report of a run, as tables and as one record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...tables import Table
from .confidence import BASELINE, COVERAGES, Separation, separations
from .records import AnswerRecord
from .results import Pair, Results, summarize
from .statistics import Auroc, Estimate, Interval


@dataclass(frozen=True)
class EvaluationReport:
    """A summary of a run's answers."""

    results: Results
    separations: tuple[Separation, ...]
    questions: int
    model: str
    form: str

    @classmethod
    def of(
        cls,
        records: Sequence[AnswerRecord],
        pairs: Sequence[Pair] = (),
        *,
        confidence: bool = False,
    ) -> EvaluationReport:
        """Summarize at least one answer.

        Raises:
            PromptError: an arm that is to be compared has no answers.
        """
        return cls(
            summarize(records, pairs),
            tuple(separations(records)) if confidence else (),
            len({record.question.id for record in records}),
            ", ".join(sorted({record.model for record in records})),
            ", ".join(sorted({record.question.form for record in records})),
        )

    def tables(self) -> list[Table]:
        return [
            _accuracy_table(self.results),
            *_contrast_tables(self.results),
            *_separation_tables(self.separations),
        ]

    def to_dict(self) -> dict[str, Any]:
        results = asdict(self.results)
        for row, accuracy in zip(results["accuracies"], self.results.accuracies, strict=True):
            row["accuracy"] = accuracy.accuracy
            row["tokens_per_right_answer"] = accuracy.tokens_per_right_answer
        record = {
            "model": self.model,
            "form": self.form,
            **results,
            "confidence": [separation.to_dict() for separation in self.separations],
            "questions": self.questions,
        }
        return dict(_without_nan(record))


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def interval(
    bounds: Interval, form: Callable[[float], str] = lambda value: f"{100 * value:.1f}"
) -> str:
    return "–" if math.isnan(bounds.low) else f"{form(bounds.low)} … {form(bounds.high)}"


def _accuracy_table(results: Results) -> Table:
    header = ("arm", "questions", "n", "right", "accuracy", "95 % (Wilson)", "committed",
              "discarded", "tokens a right answer")  # fmt: skip
    rows = [
        (
            each.arm,
            each.level,
            str(each.n),
            str(each.right),
            percent(each.accuracy),
            interval(each.interval),
            str(each.committed),
            str(each.discarded),
            f"{each.tokens_per_right_answer:.1f}" if each.tokens_per_right_answer else "–",
        )
        for each in results.accuracies
    ]
    return Table(header, rows, "Accuracy")


def _contrast_tables(results: Results) -> Iterable[Table]:
    header = ("first − second", "questions", "wins", "losses", "points", "95 % (bootstrap)",
              "p (sign test)", "p (Holm)", "log p, nats a token", "95 %")  # fmt: skip
    rows = [
        (
            f"{each.first} − {each.second}",
            str(each.questions),
            str(each.wins),
            str(each.losses),
            f"{100 * each.difference:+.1f}",
            interval(each.interval, lambda value: f"{100 * value:+.1f}"),
            _p_value(each.p_value),
            _p_value(each.adjusted),
            "–" if math.isnan(each.logprob) else f"{each.logprob:+.3f}",
            interval(each.logprob_interval, lambda value: f"{value:+.3f}"),
        )
        for each in results.contrasts
    ]
    if rows:
        yield Table(header, rows, "Contrasts, paired by question")


def _p_value(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def _separation_tables(found: Sequence[Separation]) -> Iterable[Table]:
    coverages = [f"right at {100 * coverage:g} %" for coverage in COVERAGES]
    header = ("score", "AUROC", "95 % (DeLong)", "within a level", "95 %",
              f"− {BASELINE}", "95 %", "PRR", "95 % (bootstrap)", *coverages, "area")  # fmt: skip
    note = "right at 50 %: accuracy of the surest half; area: under risk–coverage, less is better"
    for arm in dict.fromkeys(separation.arm for separation in found):
        own = [separation for separation in found if separation.arm == arm]
        title = f"Does it know when it is wrong? {arm}, {own[0].n} answers"
        yield Table(header, [_separation_row(each) for each in own], title, note)


def _separation_row(each: Separation) -> tuple[str, ...]:
    cells = []
    forms: tuple[tuple[Auroc | Estimate, str], ...] = (
        (each.pooled, ".3f"),
        (each.within, ".3f"),
        (each.gain, "+.3f"),
        (each.rejection, ".3f"),
    )
    for found, form in forms:
        value = "–" if math.isnan(found.value) else format(found.value, form)
        cells += [value, interval(found.interval, _formatter(form))]
    cells += [percent(value) for value in each.accuracy_at.values()]
    return each.score, *cells, f"{each.curve.area:.3f}"


def _formatter(form: str) -> Callable[[float], str]:
    return lambda bound: format(bound, form)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value
