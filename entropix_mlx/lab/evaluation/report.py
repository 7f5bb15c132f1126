"""Everything that is told of a run: results, and how well scores tell right from wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...profiles.profile import Profile
from .abstention import Abstention, abstentions
from .auroc import Auroc
from .confidence import COVERAGES, Certainty, certainties
from .open_answers import RULE, Variety, varieties
from .questions import SPLITS
from .records import Record
from .results import Pair, Results, summarize
from .tables import Table, interval, percent, result_tables


@dataclass(frozen=True)
class Report:
    """What the answers of a run amount to."""

    results: Results
    certainties: tuple[Certainty, ...]
    abstentions: tuple[Abstention, ...]
    """What thresholds for unsure answers do, where there are any."""
    varieties: tuple[Variety, ...]
    """Of open answers."""
    questions: dict[str, list[str]]
    """The ids of the questions, by their half."""
    model: str
    form: str

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        profile: Profile | None = None,
        human: Sequence[float] = (),
        pairs: Sequence[Pair] = (),
    ) -> Report:
        """Sum up some answers.

        Args:
            records: the answers, at least one.
            profile: where the scores of confidence are wanted, too: whose thresholds tell the
                strategies apart.
            human: log probabilities of the tokens of a human text, to compare open answers with.
            pairs: the arms to compare, as for `summarize`.
            human: log probabilities of the tokens of a human text, to compare open answers with.

        Raises:
            PromptError: an arm that is to be compared has no answers.
        """
        ids = {
            split: sorted({r.question.id for r in records if r.question.split == split})
            for split in SPLITS
        }
        graded = [record for record in records if record.question.rule != RULE]
        return cls(
            summarize(graded, pairs),
            tuple(certainties(graded, profile)) if profile else (),
            tuple(abstentions(graded, profile.abstain)) if profile else (),
            tuple(varieties(records, human)),
            {split: found for split, found in ids.items() if found},
            ", ".join(sorted({record.model for record in records})),
            ", ".join(sorted({record.question.form for record in records})),
        )

    def tables(self) -> list[Table]:
        """Return the tables that are printed."""
        return [
            *result_tables(self.results),
            *_confidence_tables(self.certainties),
            *_abstention_tables(self.abstentions),
            *_variety_tables(self.varieties),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as one JSON-ready record; what cannot be told is None."""
        results = asdict(self.results)
        for row, accuracy in zip(results["accuracies"], self.results.accuracies, strict=True):
            row["accuracy"] = accuracy.accuracy
            row["tokens_per_right_answer"] = accuracy.tokens_per_right_answer
        record = {
            "model": self.model,
            "form": self.form,
            **results,
            "confidence": [certainty.to_dict() for certainty in self.certainties],
            "abstention": [abstention.to_dict() for abstention in self.abstentions],
            "open_answers": [asdict(variety) for variety in self.varieties],
            "questions": self.questions,
        }
        return dict(_without_nan(record))


def _variety_tables(found: Sequence[Variety]) -> list[Table]:
    rows = tuple(
        (
            each.arm,
            str(each.n),
            percent(each.loops),
            percent(each.distinct_2),
            "–" if math.isnan(each.self_bleu) else f"{each.self_bleu:.3f}",
            f"{each.surprise:.2f}",
            "–" if math.isnan(each.distance) else f"{each.distance:.2f}",
        )
        for each in found
    )
    header = ("arm", "answers", "loops", "distinct-2", "self-BLEU", "bits a token",
              "from human text")  # fmt: skip
    note = (
        "how varied answers are, how surprising to the model, and how far (in bits a token) those"
        " surprises lie from a human text's: nothing about their quality"
    )
    return [Table("Open answers", header, rows, note)] if rows else []


def _abstention_tables(found: Sequence[Abstention]) -> list[Table]:
    if not found:
        return []
    rows = tuple(
        (
            each.arm,
            each.set_on,
            each.task,
            each.score,
            f"{each.given.given} of {each.given.n}",
            percent(each.given.coverage),
            percent(each.best),
            percent(each.given.risk),
            interval(each.given.interval),
        )
        for each in found
    )
    header = ("arm", "set on", "tried on", "score", "given", "coverage", "best coverage", "risk",
              "95 % (Wilson)")  # fmt: skip
    title = f"Answer or ask, with a threshold for a risk of {percent(found[0].risk)}"
    note = (
        "best coverage: of any score's threshold, chosen in hindsight on the same answers; the"
        " risk is promised for other questions of the task that it was set on, and for no others"
    )
    return [Table(title, header, rows, note)]


def _confidence_tables(found: Sequence[Certainty]) -> list[Table]:
    header = (
        "score",
        "AUROC",
        "95 % (DeLong)",
        "within a rung",
        "95 %",
        *(f"right at {100 * coverage:g} %" for coverage in COVERAGES),
        "area",
    )
    return [
        Table(
            f"Does it know when it is wrong? {arm}, {_of(found, arm)[0].n} answers",
            header,
            tuple(_confidence_row(certainty) for certainty in _of(found, arm)),
            "right at 50 %: accuracy of the surest half; area: under risk–coverage, less is better",
        )
        for arm in dict.fromkeys(certainty.arm for certainty in found)
    ]


def _of(found: Sequence[Certainty], arm: str) -> list[Certainty]:
    return [certainty for certainty in found if certainty.arm == arm]


def _confidence_row(certainty: Certainty) -> tuple[str, ...]:
    return (
        certainty.score,
        *_auroc_cells(certainty.pooled),
        *_auroc_cells(certainty.within),
        *(percent(value) for value in certainty.accuracy_at.values()),
        f"{certainty.curve.area:.3f}",
    )


def _auroc_cells(found: Auroc) -> tuple[str, str]:
    value = "–" if math.isnan(found.value) else f"{found.value:.3f}"
    return value, interval(found.interval, lambda bound: f"{bound:.3f}")


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value
