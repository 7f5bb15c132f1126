"""Generated arithmetic, in rungs of difficulty from counting on to products of two digits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from .questions import Draw, Question, Wanted, drawn

NAME = "arithmetic"

COUNT = ("What comes next: {0}, {1}, {2}?", "Which number follows {0}, {1}, {2}?")
AFTER = ("What number comes after {0}?", "Which number follows {0}?")
ADD = ("What is {0} plus {1}?", "What is {0} + {1}?", "What is the sum of {0} and {1}?")
SUBTRACT = ("What is {0} minus {1}?", "What is {0} - {1}?")
MULTIPLY = ("What is {0} times {1}?", "What is {0} * {1}?", "What is the product of {0} and {1}?")
SUM = ("What is {0} plus {1} plus {2}?", "What is {0} + {1} + {2}?")
WORDS = ("What is {0} plus {1}, in digits?", "What is the sum of {0} and {1}, in digits?")
STORIES = (
    "Anna has {0} apples and gets {1} more. How many apples does she have?",
    "A bus carries {0} people, and {1} more get on. How many people are on the bus?",
    "Tom read {0} pages today and {1} pages yesterday. How many pages did he read?",
)
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
NUMBERS = (*ONES.split(), "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")

Operands = Callable[[random.Random], tuple[int, ...]]


def _add(low: int, high: int, low2: int | None = None, high2: int | None = None) -> Operands:
    """Return what draws two whole numbers, the second from its own range where it has one."""
    second = (low if low2 is None else low2, high if high2 is None else high2)
    return lambda source: (source.randint(low, high), source.randint(*second))


def _larger_first(low: int, high: int) -> Operands:
    """Return what draws two whole numbers of a range, the larger one first."""

    def operands(source: random.Random) -> tuple[int, ...]:
        pair = source.randint(low, high), source.randint(low, high)
        return max(pair), min(pair)

    return operands


def _consecutive(source: random.Random) -> tuple[int, ...]:
    first = source.randint(1, 996)
    return first, first + 1, first + 2


def _one(source: random.Random) -> tuple[int, ...]:
    return (source.randint(10, 998),)


def _tens_and_ones(source: random.Random) -> tuple[int, ...]:
    return 10 * source.randint(1, 9), source.randint(1, 9)


def _and_tens(source: random.Random) -> tuple[int, ...]:
    """Draw a number and tens that do not lead beyond 99."""
    tens, number = source.randint(1, 8), source.randint(11, 19)
    more = 10 * source.randint(0, 8 - tens)
    return number + more, 10 * tens


def _three(source: random.Random) -> tuple[int, ...]:
    return source.randint(1, 9), source.randint(1, 9), source.randint(1, 9)


def _product(numbers: tuple[int, ...]) -> int:
    return numbers[0] * numbers[1]


def _successor(numbers: tuple[int, ...]) -> int:
    return numbers[-1] + 1


def _difference(numbers: tuple[int, ...]) -> int:
    return numbers[0] - numbers[1]


RUNGS: dict[str, tuple[Operands, Callable[[tuple[int, ...]], int], tuple[str, ...]]] = {
    "count": (_consecutive, _successor, COUNT),
    "after": (_one, _successor, AFTER),
    "plus1": (_add(10, 998, 1, 1), sum, ADD),
    "round": (_tens_and_ones, sum, ADD),
    "tens": (_and_tens, sum, ADD),
    "add1": (_add(1, 9), sum, ADD),
    "mul1": (_add(2, 9), _product, MULTIPLY),
    "sub18": (_larger_first(1, 18), _difference, SUBTRACT),
    "add21": (_add(10, 99, 1, 9), sum, ADD),
    "add2": (_add(10, 99), sum, ADD),
    "sum3": (_three, sum, SUM),
    "words": (_add(1, 20), sum, WORDS),
    "story": (_add(2, 20), sum, STORIES),
    "sub2": (_larger_first(10, 99), _difference, SUBTRACT),
    "mul21": (_add(10, 99, 2, 9), _product, MULTIPLY),
}
"""By name: how operands are drawn, what the answer is, and how the question may be worded."""


def rungs(wanted: Wanted) -> list[Iterator[Question]]:
    """Return the questions of each rung that is wanted; there is no end to them."""
    names = wanted.rungs or tuple(RUNGS)
    return [drawn(_drawer(name), name, wanted) for name in names if name in RUNGS]


def _drawer(rung: str) -> Draw:
    operands, solve, wordings = RUNGS[rung]

    def draw(source: random.Random, like: Question | None) -> Question:
        numbers = operands(source)
        way = source.randrange(len(wordings)) if like is None else like.wording
        told = [NUMBERS[number] for number in numbers] if rung == "words" else list(numbers)
        asked = ",".join(map(str, numbers))
        return Question(
            id=f"{NAME}/{rung}/{asked}/{way}",
            task=NAME,
            rung=rung,
            # 3 + 4 and 4 + 3 are about the same thing.
            subject=",".join(map(str, sorted(numbers))),
            text=wordings[way].format(*told),
            answers=(str(solve(numbers)),),
            rule="number",
            wording=way,
        )

    return draw
