"""What looking things up buys: sums up the answers of `entropix eval --task notes`.

    entropix eval --task notes --form chat --examples 0 --sampler greedy -m 96 \
        --set notes.max_insertions=0 --set 'notes.when="lost"' --set 'notes.when="start"' \
        --output notes.jsonl
    python benchmarks/looking_up.py notes.jsonl

Only questions that all arms have answered count. "At random" looks things up before as many answers
as the trigger does, whichever: what is to be expected of it follows from the other two arms.
"""

import random
import sys
from collections import defaultdict
from statistics import fmean

from entropix_mlx.lab.evaluation.records import read_records

CLOSED, LOST, START = "max_insertions=0", '"lost"', '"start"'
SAMPLES = 2000


def tokens(record, discarded):
    return record.graded.committed + (record.graded.discarded if discarded else 0)


def figures(rows, discarded):
    """Return accuracy and tokens an answer of each arm, and how the trigger compares."""
    arms = {
        name: (
            fmean(row[name].graded.right for row in rows),
            fmean(tokens(row[name], discarded) for row in rows),
        )
        for name in (CLOSED, LOST, START)
    }
    rate = fmean(row[LOST].graded.retrieved > 0 for row in rows)
    pairs = zip(arms[START], arms[CLOSED], strict=True)
    arms["at random"] = tuple(rate * start + (1 - rate) * closed for start, closed in pairs)
    (right, cost), (best, full) = arms[LOST], arms[START]
    return arms, rate, right / best if best else float("nan"), cost / full


def main():
    found = defaultdict(dict)
    for record in read_records(sys.argv[1]):
        arm = next(name for name in (CLOSED, LOST, START) if record.question.arm.endswith(name))
        found[record.question.id][arm] = record
    rows = [row for row in found.values() if len(row) == 3]
    kinds = {"all": rows}
    for row in rows:
        kinds.setdefault(row[CLOSED].question.rung, []).append(row)
    for kind, some in kinds.items():
        arms, rate, _, _ = figures(some, True)
        print(f"{kind}: {len(some)} questions, looked up by the trigger in {rate:.0%}")
        for name, (right, cost) in arms.items():
            print(f"  {name:18} {right:6.1%} right, {cost:6.1f} tokens")
    source = random.Random(0)
    for discarded in (True, False):
        drawn = [figures(source.choices(rows, k=len(rows)), discarded)[2:] for _ in range(SAMPLES)]
        _, _, share, cost = figures(rows, discarded)
        told = "with" if discarded else "without"
        for name, value, place in (("accuracy", share, 0), ("tokens", cost, 1)):
            ends = sorted(one[place] for one in drawn)
            low, high = ends[SAMPLES // 40], ends[-SAMPLES // 40]
            print(
                f"trigger over always, {told} dropped drafts:"
                f" {name} {value:.0%} [{low:.0%}, {high:.0%}]"
            )


if __name__ == "__main__":
    main()
