"""Loops: answers that only repeat themselves are ended, and answers that people call fine are
not."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.answer.loops import REPEATED, LoopDetector
from entropix_mlx.answer.writer import Writer
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import LOOP, Origin, Step
from entropix_mlx.summary import Summary
from tests.scripted import PROMPT, PROSE, TOKENIZER, scripted

WORDS = re.findall(
    r"\w+",
    "sea light keeper gull stone night wind lamp harbour ship winter song river hand door salt red"
    " silver slowly never over under count turn sleep carry open break the a of and in with",
)
TOKEN = re.compile(r" ?[^\W\d]+|\d|\s+|[^\w\s]+")
"""About as vocabularies divide a text."""


def loop_at(text):
    """Return after how many tokens of a text a loop is found; None if there is none.

    Tokens stand for their ids here.
    """
    detector = LoopDetector("".join)
    return next((n for n, token in enumerate(TOKEN.findall(text), 1) if detector.add(token)), None)


# ── Texts that people would call fine ───────────────────────────────────────────────────────────


def line(chance, least=3, most=9):
    return " ".join(chance.choices(WORDS, k=chance.randint(least, most)))


def lines(chance, least, most):
    return "\n".join(line(chance) for _ in range(chance.randint(least, most)))


def song(chance):
    """Verses and a refrain that comes after each, and twice at the end."""
    refrain = lines(chance, 2, 8)
    verses = [lines(chance, 2, 6) for _ in range(chance.randint(2, 6))]
    return "\n\n".join(part for verse in verses for part in (verse, refrain)) + "\n\n" + refrain


def grid(cell, begin="", end="\n", columns=12, rows=12):
    """Return what makes tables of equal rows of equal cells."""

    def make(chance):
        row = begin + cell * chance.randint(2, columns) + end
        return "```\n" + row * chance.randint(2, rows) + "```"

    return make


def each(form):
    """Return what makes lines of one form, with rising numbers and words, old and new."""

    def make(chance):
        same = line(chance, 3, 5)
        count = range(1, chance.randint(5, 60))
        return "\n".join(form.format(n=n, same=same, new=line(chance)) for n in count)

    return make


FINE = {
    "song": song,
    "matrix": grid("0, ", "    [", "],\n"),
    "flags": grid("false, ", "[", "]\n", 8, 8),
    "board": grid(". "),
    "Markdown": grid("|   ", end="|\n", columns=8),
    "HTML": grid("<td></td>", "<tr>", "</tr>\n", 4, 4),
    "cards": grid('  <div class="card"><h3>Title</h3><p>Text</p></div>\n', columns=4, rows=2),
    "records": grid("7,", end="0.5\n", columns=4, rows=20),
    "ballad": each("{new},\n{same};\n{new},\n{same}.\n"),
    "bullets": each("- {same} {new}"),
    "days": each("Day {n}: {same}."),
    "numbered": each("{n}. Step {n}: {new}"),
    "counting": each("{n}, "),
    "blanks": each("{n}. Name: ____ Date: ____"),
    "rota": lambda chance: "".join(f"{n}. {WORDS[n % 7]}\n" for n in range(chance.randint(20, 90))),
    "products": each("| 7 x {n} | {n}0 |"),
    "getters": each("    def get_{new}(self):\n        return self._{new}\n"),
    "branches": each("    elif key == '{new}':\n        return {n}"),
    "checks": each("    assert add({n}, {n}) == {n}"),
    "JSON": each('{{"id": {n}, "name": "{new}", "ok": true}},'),
    "dialogue": each("Ann: {new}?\nBen: {new}."),
    "placeholders": each('{{"id": {n}, "title": "{same} {n}", "text": "{same}"}},'),
    "bottles": each(
        "{n} bottles on the wall, {n} bottles, {same}.\nTake one, {same}, {n} bottles.\n"
    ),
    "log": each("12:00:{n} INFO server started, {same} on port {n} {same}"),
    "results": each("In {n} the {same} had {n} per cent."),
    "turtle": lambda chance: (
        "```\n" + "turtle.forward(100)\nturtle.left(45)\n" * chance.randint(2, 12) + "```"
    ),
    "unit tests": lambda chance: (
        "```\n" + each("def test_user_{n}():\n    user = User({n})\n    assert user.ok\n\n")(chance)
    ),
    "settings": lambda chance: (
        "```\n[" + ", ".join(['"black", "white"'] * chance.randint(2, 12)) + "]\n```"
    ),
    "page": lambda chance: (
        "```\n" + '<div class="card">\n<h3>Title</h3>\n<p>Text</p>\n</div>\n\n' * 6 + "```"
    ),
    "layers": lambda chance: (
        "```\n" + "    x = relu(norm(x + dense(x)))\n" * chance.randint(2, 12) + "```"
    ),
    "inputs": lambda chance: (
        "```\n" + '<p><input type="text" name="item"></p>\n' * chance.randint(2, 8) + "```"
    ),
    "records in YAML": lambda chance: (
        "```\n" + "- name: Item\n  price: 10\n  colour: red\n" * chance.randint(2, 8) + "```"
    ),
    "chant": lambda chance: f"{line(chance, 3, 6)}! " * chance.randint(2, 7),
    "tables of products": lambda chance: "\n".join(
        f"{a} × {b} = {a * b}" for a in range(1, chance.randint(4, 12)) for b in range(1, 11)
    ),
    "variations": lambda chance: "\n".join(
        f'{n}. "Could you {chance.choice(WORDS)} the {chance.choice(WORDS)}, please, and send it to'
        ' the keeper of the harbour before the winter begins?"'
        for n in range(1, 7)
    ),
    "wheels": lambda chance: "\n\n".join(
        f"The {a} on the bus {b}, {b}, {b}.\nThe {a} on the bus {b},\nall through the town."
        for a, b in (chance.choices(WORDS, k=2) for _ in range(8))
    ),
    "farm": lambda chance: "\n\n".join(
        f"The keeper had a farm, on and on, and on that farm there was a {a}, on and on, with a {b}"
        f" {b} here and a {b} {b} there, here a {b}, there a {b}, everywhere a {b} {b}."
        for a, b in (chance.choices(WORDS, k=2) for _ in range(8))
    ),
    "tries": each("try{n} = attempt({n})  # {same}"),
    "laughter": lambda chance: "ha " * chance.randint(3, 40) + "on and " * chance.randint(2, 15),
    "rule": lambda chance: chance.choice("=-*_~.") * chance.randint(20, 200) + line(chance),
}


@pytest.mark.parametrize("kind", FINE)
def test_no_answer_that_is_fine_is_ended(kind):
    for seed in range(30):
        text = FINE[kind](random.Random(f"{kind} {seed}"))
        assert loop_at(text) is None, text


# ── Loops ───────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 75), st.integers(0, 300), st.integers(0, 9))
def test_a_loop_is_ended_within_eighty_tokens(period, before, seed):
    """Whatever stands before it; and the period may repeat tokens itself."""
    chance = random.Random(seed)
    words = [word for word in WORDS if len(word) > 2]  # shorter ones are granted more
    same, text = (" ".join(chance.choices(words, k=k)) for k in (period, before))
    found = loop_at(f"{text} " + f"{same} " * 90)
    assert before < found <= before + period + 80


def test_a_phrase_stands_twice_in_a_paragraph_and_not_three_times():
    said = [
        "I am writing to you today, and the {} is {}. ".format(*WORDS[n : n + 2]) for n in (0, 2, 4)
    ]
    text = "Dear sister. " + "".join(said)
    phrases = [match.end() for match in re.finditer("to you today,", text)]
    assert loop_at(text[: phrases[2] - len("to you today,")]) is None
    assert loop_at(text) is not None
    assert loop_at("\n".join(said)) is None  # a list
    assert loop_at(f"```\n{text}") is None
    assert loop_at(text.replace("sister", "sister: {").replace(".", "},{")) is None


def test_signs_and_code_may_be_repeated_longer_but_not_for_ever():
    for text in ("- " * 2000, "```\n" + "x = next(x)\n" * 400):
        found = loop_at(text)
        assert found is not None
        assert REPEATED < found < 10 * REPEATED


def test_the_work_for_a_token_does_not_grow():
    """Counted, not timed: where texts are almost periodic, few tokens are compared again."""

    class Counted(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            compared.append(1)
            return int(self) == int(other)

    chance, compared = random.Random(1), []
    detector = LoopDetector(lambda ids: "")
    for n in range(5000):
        detector.add(Counted(n % 50 if chance.random() < 0.9 else 99))
    assert len(compared) < 40 * 5000


def test_an_answer_in_a_loop_stops_and_keeps_its_text():
    writer = Writer(
        TOKENIZER, Profile.load().position_score, 999, loops=LoopDetector(TOKENIZER.decode)
    )
    steps = []
    while not writer.finished:
        row = scripted(PROMPT, 0, PROSE)
        token = PROSE[len(steps) % len(PROSE)]
        steps.append(writer.write(row._replace(token=token), Origin.SAMPLED))
    assert (steps[-1].finish_reason, steps[-1].stopped) == ("stop", LOOP)
    assert all(step.stopped is None for step in steps[:-1])
    summary = Summary.of(steps)
    assert summary.text == TOKENIZER.decode([step.token for step in steps])
    assert (summary.to_dict()["stopped"], summary.finish_reason) == (LOOP, "stop")
    assert summary.ending != "stop"
    assert len(steps) <= 2 * len(PROSE) + REPEATED
    assert Step.from_dict(steps[-1].to_dict()).stopped == LOOP
