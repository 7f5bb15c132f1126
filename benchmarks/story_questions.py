"""Print problems in words whose answers are a sentence or two, long enough for an intervention.

    python benchmarks/story_questions.py > stories.jsonl

The demo model answers some 40 % of them right, mostly in 16 tokens or more; what counts is the last
number of the first line. docs/evaluation.md has the commands.
"""

import json
import random

NAMES = (
    "Tom",
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Ida",
    "Jack",
    "Kate",
    "Leo",
    "Mia",
    "Noah",
    "Olga",
)
THINGS = (
    "apples",
    "pears",
    "books",
    "pens",
    "stamps",
    "coins",
    "cards",
    "marbles",
    "shells",
    "stickers",
    "eggs",
    "balls",
)
KINDS = {
    "gains": "{name} has {a} {things} and gets {b} more {things}."
    " How many {things} does {name} have now, and why?",
    "gives": "{name} has {sum} {things} and gives {b} {things} away."
    " How many {things} does {name} have now, and why?",
    "loses": "{name} has {sum} {things} and loses {b} {things}."
    " How many {things} does {name} still have, and why?",
    "bags": "{name} has {a} bags with {b} {things} in each bag."
    " How many {things} does {name} have, and why?",
}
QUESTIONS = 1200


def main() -> None:
    """Print a line a question, in an order that mixes the kinds."""
    drawn = random.Random(0)
    asked: set[str] = set()
    while len(asked) < QUESTIONS:
        kind = list(KINDS)[len(asked) % len(KINDS)]
        a, b = drawn.randint(2, 9), drawn.randint(2, 9)
        names = {"name": drawn.choice(NAMES), "things": drawn.choice(THINGS)}
        question = KINDS[kind].format(a=a, b=b, sum=a + b, **names)
        if question in asked:
            continue
        asked.add(question)
        answer = {"gains": a + b, "bags": a * b}.get(kind, a)
        record = {"id": f"{kind}/{len(asked)}", "question": question, "answer": [str(answer)]}
        print(json.dumps(record | {"rule": "last", "rung": kind}))


if __name__ == "__main__":
    main()
