"""Print the questions of the experiment about forks: small sums, products, differences, each once.

    python benchmarks/fork_questions.py > one_digit.jsonl

They are asked in a chat without worked examples, so that the answers are sentences with room for a
fork; what counts is the last number of the first line. docs/evaluation.md has the commands.
"""

import json
import random

from entropix_mlx.lab.evaluation.questions import ALL, Question, Wanted
from entropix_mlx.lab.evaluation.tasks import questions_of

RUNGS = ("add1", "mul1", "sub18")
MANY = 1000
"""More than a rung has different questions."""


def main() -> None:
    """Print a line a question."""
    drawn = []
    for rung in RUNGS:
        drawn += questions_of("arithmetic", Wanted(limit=MANY, rungs=(rung,), examples=0), ALL)
    random.Random(0).shuffle(drawn)
    questions: dict[str, Question] = {}
    for question in drawn:  # when a rung has no others, its questions come again
        questions.setdefault(question.text, question)
    for question in questions.values():
        record = {"id": question.id, "question": question.text, "answer": list(question.answers)}
        print(json.dumps(record | {"rule": "last", "rung": question.rung}))


if __name__ == "__main__":
    main()
