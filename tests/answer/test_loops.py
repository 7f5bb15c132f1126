"""Loops: answers that only repeat themselves are ended, and answers that people call fine are
not."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.answer.loops import REPEATED, LoopDetector
from entropix_mlx.answer.writer import Writer
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import LOOP, Origin, Step
from entropix_mlx.summary import Summary
from tests.scripted import PROMPT, PROSE, TOKENIZER, scripted

WORDS = [
    "sea",
    "light",
    "keeper",
    "gull",
    "stone",
    "night",
    "wind",
    "lamp",
    "harbour",
    "ship",
    "winter",
    "song",
    "river",
    "hand",
    "door",
    "salt",
    "red",
    "silver",
    "slowly",
    "never",
    "over",
    "under",
    "count",
    "turn",
    "sleep",
    "carry",
    "open",
    "break",
    "the",
    "a",
    "of",
    "and",
    "in",
    "with",
]
TOKEN = re.compile(r" ?[^\W\d]+|\d|\s+|[^\w\s]+")
"""About as vocabularies divide a text."""


class Vocabulary:
    """The ids of tokens, in the order in which they come."""

    def __init__(self):
        self._tokens = []
        self._ids = {}

    def encode(self, text):
        tokens = TOKEN.findall(text)
        for token in tokens:
            if token not in self._ids:
                self._ids[token] = len(self._tokens)
                self._tokens.append(token)
        return [self._ids[token] for token in tokens]

    def decode(self, ids):
        return "".join(self._tokens[token] for token in ids)


def loop_at(text):
    """Return after how many tokens of a text a loop is found; None if there is none."""
    vocabulary = Vocabulary()
    detector = LoopDetector(vocabulary.decode)
    found = (n for n, token in enumerate(vocabulary.encode(text), 1) if detector.add(token))
    return next(found, None)


# ── Texts that people would call fine ───────────────────────────────────────────────────────────


def line(chance, least=4, most=9):
    return " ".join(chance.choices(WORDS, k=chance.randint(least, most)))


def lines(chance, count):
    return "\n".join(line(chance) for _ in range(count))


def song(chance):
    """Verses and a refrain that comes after each, and twice at the end."""
    refrain = lines(chance, chance.randint(2, 8))
    verses = [lines(chance, chance.randint(2, 6)) for _ in range(chance.randint(2, 6))]
    return "\n\n".join(part for verse in verses for part in (verse, refrain)) + "\n\n" + refrain


def ballad(chance):
    """A line of each verse stands in all of them, some of them four times."""
    burden = line(chance)
    verses = [f"{line(chance)},\n{burden};\n{line(chance)},\n{burden}." for _ in range(12)]
    return "\n\n".join([*verses, "\n".join([burden] * 4)])


def laughter(chance):
    laughed, went = "ha " * chance.randint(3, 40), "on and " * chance.randint(2, 15)
    return f"He laughed: {laughed}and went {went}on."


def bullets(chance):
    first = line(chance, 3, 6)
    return "\n".join(f"- {first} {chance.choice(WORDS)}" for _ in range(chance.randint(5, 60)))


def numbered(chance):
    return "\n".join(
        f"{n}. Step {n}: {line(chance, 2, 3)}" for n in range(1, chance.randint(9, 99))
    )


def counting(chance):
    step = chance.choice([1, 2, 5, 10])
    return ", ".join(str(n) for n in range(step, step * chance.randint(20, 200), step))


def days(chance):
    same = line(chance, 3, 5)
    return "\n".join(f"Day {n}: {same}." for n in range(1, chance.randint(10, 60)))


def multiplication(chance):
    factor = chance.randint(2, 99)
    return "\n".join(f"| {factor} x {n} | {factor * n} |" for n in range(1, 40))


def empty_table(chance):
    columns, rows = chance.randint(2, 8), chance.randint(3, 12)
    head = "| " + " | ".join(chance.choices(WORDS, k=columns)) + " |\n"
    return head + "| --- " * columns + "|\n" + ("|   " * columns + "|\n") * rows


def html_table(chance):
    columns, rows = chance.randint(2, 4), chance.randint(2, 4)
    cells = ["<tr>" + "<td></td>" * columns + "</tr>"] * rows
    return "```html\n<table>\n" + "\n".join(cells) + "\n</table>\n```"


def matrix(chance):
    size = chance.randint(3, 12)
    row = "[" + ", ".join("0" * size) + "]"
    return "```python\ngrid = [\n" + f"    {row},\n" * size + "]\n```"


def board(chance):
    return "```\n" + (". " * 8 + "\n") * 8 + "+---+---+\n" * chance.randint(2, 12) + "```"


def flags(chance):
    size = chance.randint(3, 8)
    row = "[" + ", ".join(["false"] * size) + "]"
    return "```json\n[\n" + f"  {row},\n" * size + "]\n```"


def rows(chance):
    same = ",".join(chance.choices("0123456789", k=4))
    return "a,b,c,d\n" + "\n".join([same] * chance.randint(2, 20))


def code(chance):
    names = chance.sample(WORDS, 12)
    parts = [f"    def get_{n}(self):\n        return self._{n}\n" for n in names]
    return "class Lamp:\n" + "\n".join(parts)


def branches(chance):
    parts = [f"    elif key == '{w}':\n        return {n}" for n, w in enumerate(WORDS)]
    return "def find(key):\n    if not key:\n        return None\n" + "\n".join(parts)


def checks(chance):
    calls = [f"    assert add({a}, {a}) == {2 * a}" for a in range(chance.randint(5, 40))]
    return "def test_add():\n" + "\n".join(calls)


def records(chance):
    made = [f'{{"id": {n}, "name": "{chance.choice(WORDS)}", "ok": true}}' for n in range(40)]
    return "[\n  " + ",\n  ".join(made) + "\n]"


def dialogue(chance):
    return "\n".join(f"{who}: {line(chance, 2, 5)}?" for who in ("Ann", "Ben") * 20)


def rule(chance):
    return f"{line(chance)}\n{chance.choice('=-*_~.') * chance.randint(20, 200)}\n{line(chance)}"


FINE = [
    *(song, ballad, laughter, bullets, numbered, counting, days, multiplication, empty_table),
    *(html_table, matrix, flags, board, rows, code, branches, checks, records, dialogue, rule),
]


@pytest.mark.parametrize("kind", FINE, ids=lambda kind: kind.__name__)
def test_no_answer_that_is_fine_is_ended(kind):
    for seed in range(30):
        text = kind(random.Random(f"{kind.__name__} {seed}"))
        assert loop_at(text) is None, text


# ── Loops ───────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 75), st.integers(0, 300), st.integers(0, 9))
def test_a_loop_is_ended_within_eighty_tokens(period, before, seed):
    """Whatever stands before it; and the period may repeat tokens itself."""
    chance = random.Random(seed)
    vocabulary = Vocabulary()
    detector = LoopDetector(vocabulary.decode)
    same = vocabulary.encode(" ".join(chance.choices(WORDS, k=period)))
    text = vocabulary.encode(" ".join(chance.choices(WORDS, k=before)))
    found = [detector.add(token) for token in [*text, *same * 90]]
    assert not any(found[: len(text)])
    assert found.index(True) <= len(text) + period + 80


def test_signs_and_code_may_be_repeated_longer_but_not_for_ever():
    for text in ("- " * 2000, "```\n" + "x = next(x)\n" * 400):
        found = loop_at(text)
        assert found is not None
        assert REPEATED < found < 10 * REPEATED


def test_the_work_for_a_token_does_not_grow():
    """Counted, not timed: where texts are almost periodic, few tokens are compared again."""

    class Counted(int):
        compared = 0

        def __eq__(self, other):
            Counted.compared += 1
            return int(self) == int(other)

        __hash__ = int.__hash__

    chance = random.Random(1)
    detector = LoopDetector(lambda ids: "")
    tokens = [n % 50 if chance.random() < 0.9 else 99 for n in range(5000)]
    for token in tokens:
        detector.add(Counted(token))
    assert Counted.compared < 40 * len(tokens)


def test_an_answer_in_a_loop_stops_and_keeps_its_text():
    writer = Writer(
        TOKENIZER, Profile.load().position_score, 999, loops=LoopDetector(TOKENIZER.decode)
    )
    steps = []
    while not writer.finished:
        position = scripted(PROMPT, 0, PROSE)
        token = PROSE[len(steps) % len(PROSE)]
        steps.append(writer.write(replace(position, token=token), Origin.SAMPLED))
    assert (steps[-1].finish_reason, steps[-1].stopped) == ("stop", LOOP)
    assert all(step.stopped is None for step in steps[:-1])
    summary = Summary.of(steps)
    assert summary.text == TOKENIZER.decode([step.token for step in steps])
    assert (summary.to_dict()["stopped"], summary.finish_reason) == (LOOP, "stop")
    assert summary.ending != "stop"
    assert len(steps) <= 2 * len(PROSE) + REPEATED
    assert Step.from_dict(steps[-1].to_dict()).stopped == LOOP
