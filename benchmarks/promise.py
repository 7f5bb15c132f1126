"""A promise on real answers whose kind changes: the threshold that moves, and one that does not.

    entropix eval --study studies/scores.toml --output scores.jsonl
    python -m benchmarks.promise scores.jsonl --risk 0.2

Streams of three kinds in turn (sums, facts, sums) are drawn without replacement, up to 400 answers
each. Of every stream: at how many moments, from the 100th answer of a kind on, the risk of the last
100 given answers lay within 5 points of the promise; the risk of each kind from there on; coverage.
The fixed threshold is set on all of the first kind.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np

from entropix_mlx.answer.promise import PromiseState
from entropix_mlx.lab.evaluation.confidence import expected_threshold
from entropix_mlx.lab.evaluation.records import AnswerRecord, read_records
from entropix_mlx.lab.evaluation.statistics import Bools, Floats
from entropix_mlx.profiles.confidence import score_of
from entropix_mlx.tables import Table

LENGTH = 400
WINDOW = 100
NEAR = 0.05
STREAMS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("answers", help="a file of entropix eval --output, of two tasks")
    parser.add_argument("--risk", type=float, default=0.2)
    arguments = parser.parse_args()
    by_task: dict[str, list[AnswerRecord]] = {}
    for record in read_records(arguments.answers):
        by_task.setdefault(record.question.task, []).append(record)
    first, other = by_task
    rows = []
    for kinds in ((first, other, first), (other, first, other)):
        for score in ("max_entropy", "mean_logprob"):
            found = [
                of_stream(drawn(by_task, kinds, seed), score, arguments.risk)
                for seed in range(STREAMS)
            ]
            for number, name in enumerate(("moving", "fixed")):
                figures = np.mean([each[number] for each in found], axis=0)
                cells = [f"{100 * figure:.1f} %" for figure in figures]
                rows.append((f"{', '.join(kinds)}: {score}, {name}", *cells))
    header = ("stream", "near the promise", "risk 1", "risk 2", "risk 3", "coverage")
    print(Table(header, rows).to_markdown())


def drawn(
    by_task: dict[str, list[AnswerRecord]], kinds: tuple[str, ...], seed: int
) -> list[list[AnswerRecord]]:
    source = np.random.default_rng(seed)
    left = {kind: list(source.permutation(len(found))) for kind, found in by_task.items()}
    parts = []
    for kind in kinds:
        length = min(LENGTH, len(by_task[kind]) // kinds.count(kind))
        parts.append([by_task[kind][left[kind].pop()] for _ in range(length)])
    return parts


def of_stream(parts: list[list[AnswerRecord]], score: str, risk: float) -> list[list[float]]:
    """Return the figures of the threshold that moves, and of the one that does not."""
    records = [record for part in parts for record in part]
    values = np.array([score_of(score, record.tokens) for record in records])
    right = np.array([record.graded.right for record in records])
    state = PromiseState(risk=risk, score=score)
    given = []
    for value, is_right in zip(values, right, strict=True):
        state = state.marked(bool(is_right), float(value))
        given.append(state.marks[-1].given)
    begun = len(parts[0])
    fixed = expected_threshold(values[:begun], right[:begun], risk)
    unmoved = values >= (np.inf if fixed is None else fixed)
    ends = np.cumsum([0, *map(len, parts)])
    return [figures(mask, right, ends, risk) for mask in (np.array(given), unmoved)]


def figures(given: Bools, right: Bools, ends: Floats, risk: float) -> list[float]:
    places, near, risks = np.flatnonzero(given), [], []
    for begin, end in pairwise(ends):
        for moment in range(begin + WINDOW, end):
            last = places[places <= moment][-WINDOW:]
            near.append(abs(1 - right[last].mean() - risk) <= NEAR)
        late = places[(places >= begin + WINDOW) & (places < end)]
        risks.append(float(1 - right[late].mean()))
    return [float(np.mean(near)), *risks, float(given.mean())]


if __name__ == "__main__":
    main()
