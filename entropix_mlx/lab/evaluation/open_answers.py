"""Open questions, whose answers nobody grades: how varied they are, and whether they loop.

No model that judges texts is at hand here, so nothing is said about how good they are.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from statistics import fmean

from .questions import Question, Wanted, listed
from .records import Record
from .statistics import wasserstein

NAME = RULE = "open"
LOOP_LENGTH, LOOP_TIMES = 4, 3
"""An answer loops if its last so many words stand so often in it."""
BLEU_LENGTH = 4
"""The longest runs of words that BLEU compares."""


def rungs(wanted: Wanted) -> list[Iterator[Question]]:
    """Return the prompts that calibration holds out, by their kind."""
    file = resources.files("entropix_mlx.lab.calibration") / "calibration_prompts.toml"
    kinds = tomllib.loads(file.read_text(encoding="utf-8"))["held_out"]
    bare = replace(wanted, examples=0)
    return [
        listed([_question(kind, prompt) for prompt in prompts], bare)
        for kind, prompts in kinds.items()
        if not wanted.rungs or kind in wanted.rungs
    ]


def _question(kind: str, prompt: str) -> Question:
    return Question(f"{NAME}/{kind}/{prompt}", NAME, kind, prompt, prompt, ("",), RULE)


@dataclass(frozen=True)
class Variety:
    """The open answers of one arm."""

    arm: str
    n: int
    loops: float
    """The share of answers that end in a loop."""
    distinct_2: float
    """Different pairs of words, as a share of all pairs."""
    self_bleu: float
    """Mean BLEU of each answer against the others to its question; higher is less varied. NaN
    where no question has two answers."""
    surprise: float
    """Mean surprise of a token under the model at temperature 1, in bits."""
    distance: float
    """How far the surprises of its tokens lie from those of a human text, in bits a token
    (`statistics.wasserstein`). NaN where there is no such text."""


def varieties(records: Sequence[Record], human: Sequence[float] = ()) -> list[Variety]:
    """Return what can be said of the open answers of each arm.

    Args:
        records: the answers; those that have a grade are left out.
        human: log probabilities (nats) of the tokens of a human text under the same model.
    """
    by_arm: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.question.rule == RULE:
            by_arm[record.question.arm].append(record)
    return [_variety(arm, answers, human) for arm, answers in by_arm.items()]


def _variety(arm: str, answers: Sequence[Record], human: Sequence[float]) -> Variety:
    texts = [answer.text.split() for answer in answers]
    by_question: dict[str, list[list[str]]] = defaultdict(list)
    for answer, words in zip(answers, texts, strict=True):
        by_question[answer.question.id].append(words)
    pairs = [pair for words in texts for pair in _runs(words, 2)]
    bleus = [
        bleu(words, group[:place] + group[place + 1 :])
        for group in by_question.values()
        if len(group) > 1
        for place, words in enumerate(group)
    ]
    logprobs = [logprob for answer in answers for logprob in answer.tokens.logprob]
    return Variety(
        arm,
        len(answers),
        fmean(loops(words) for words in texts),
        len(set(pairs)) / len(pairs) if pairs else 0.0,
        fmean(bleus) if bleus else math.nan,
        -fmean(logprobs) / math.log(2) if logprobs else math.nan,
        wasserstein(logprobs, human) / math.log(2),
    )


def loops(words: Sequence[str]) -> bool:
    """Tell whether a text ends in a loop."""
    runs = _runs(words, LOOP_LENGTH)
    return bool(runs) and runs.count(runs[-1]) >= LOOP_TIMES


def bleu(words: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return BLEU-4 (Papineni et al. 2002); a precision of 0 counts as half a match (smoothed)."""
    if not words:
        return 0.0
    logs = []
    for length in range(1, BLEU_LENGTH + 1):
        own = Counter(_runs(words, length))
        most: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            most |= Counter(_runs(reference, length))
        matched, total = (own & most).total(), own.total()
        if total:
            logs.append(math.log(max(matched, 0.5) / total))
    closest = min((abs(len(r) - len(words)), len(r)) for r in references)[1]
    return min(1.0, math.exp(1 - closest / len(words))) * math.exp(fmean(logs))


def _runs(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[at : at + length]) for at in range(len(words) - length + 1)]
