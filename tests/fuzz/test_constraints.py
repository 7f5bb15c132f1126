"""Hostile schemas and grammars: each is refused with a sentence, or its answers fit it, in
bounds."""

import json
import socket
import time

import jsonschema
import numpy as np
import pytest
import referencing.exceptions

from entropix_mlx.constraints.constraint import Constraint
from entropix_mlx.constraints.matcher import matcher_for
from entropix_mlx.errors import ConstraintError
from tests.conftest import make_byte_tokenizer
from tests.fuzz.conftest import times

CPU_SECONDS = 10
WALK = 120
CLOSING = '"}]'
NAMES = ("a", "b", "a/b", "", "~0", "$ref", "\u2028", "x" * 300, "😀")
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
PATTERNS = ("(a+)+$", "(x|xx)*y", "[", "(?=a)b", "\\1(a)", "a{99999}", "^$", "\\p{L}+", ".{0,5000}")
REFERENCES = ("#", "#/$defs/x", "#/nowhere", "http://127.0.0.1:9/x", "file:///etc/passwd", "#%", "")
VALUES = (None, True, 0, -1, 1e308, 10**40, float("nan"), "", "\ud800", [], {}, ["a", ["b"]])
NUMBERS = (-1, 0, 1, 3, 10**9, 10**30, 0.5, "3", None)
GRAMMARS = ("regex", "choice", "grammar")


def schema(random, depth=3):
    """Return a schema of hostile parts, many of which contradict one another."""
    if depth == 0 or random.random() < 0.05:
        return random.choice(
            [{}, True, False, {"type": random.choice(TYPES)}, random.choice(VALUES)]
        )
    makers = {
        "type": lambda: random.choice([*TYPES, list(TYPES[:3]), "text", 5, []]),
        "properties": lambda: {random.choice(NAMES): schema(random, depth - 1) for _ in range(3)},
        "required": lambda: random.sample(NAMES, 3),
        "additionalProperties": lambda: schema(random, depth - 1),
        "items": lambda: schema(random, depth - 1),
        "prefixItems": lambda: [schema(random, depth - 1) for _ in range(2)],
        "enum": lambda: [random.choice(VALUES) for _ in range(random.choice([0, 1, 5, 2000]))],
        "const": lambda: random.choice(VALUES),
        "pattern": lambda: random.choice(PATTERNS),
        "format": lambda: random.choice(["date-time", "email", "ipv6", "nonsense", 3]),
        "$ref": lambda: random.choice(REFERENCES),
        "$defs": lambda: {"x": random.choice([{"$ref": "#/$defs/x"}, schema(random, depth - 1)])},
        **dict.fromkeys(("anyOf", "oneOf", "allOf"), lambda: [schema(random, depth - 1)] * 2),
        **dict.fromkeys(
            ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "multipleOf"),
            lambda: random.choice(NUMBERS),
        ),
        **dict.fromkeys(("not", "contains", "uniqueItems", "x-guidance"), lambda: {"type": "null"}),
    }
    return {name: makers[name]() for name in random.sample(sorted(makers), random.randint(1, 5))}


def other(random, kind):
    if kind == "choice":
        return [random.choice(["", "a", "a" * 20_000, "\ud800", 5, '"'])] * random.choice([0, 1, 3])
    if kind == "regex":
        return random.choice(PATTERNS) + random.choice(["", *PATTERNS])
    rules = ("start: start", 'start: "a" start | ', "start: x\nx: y\ny: x", "root ::= root", "}{")
    return random.choice([*rules, f"start: /{random.choice(PATTERNS)}/", "start: %json {}", ""])


def walk(random, matcher, spelling, size):
    """Return a text of random tokens that are allowed, closing ones first, if it comes to an
    end."""
    vocabulary = spelling.get_vocab()
    closing = {spelling.eos_token_id, *(vocabulary[sign] for sign in CLOSING)}
    found = []
    for _ in range(WALK):
        bits = np.unpackbits(matcher.masks()[0].view(np.uint8), bitorder="little")[:size]
        allowed = [int(token) for token in np.flatnonzero(bits)]
        assert allowed, "something may always come next"
        token = random.choice([token for token in allowed if token in closing] or allowed)
        if token == spelling.eos_token_id:
            return spelling.decode(found)
        matcher.add(token)
        found.append(token)
    return None


@pytest.fixture(scope="module")
def spelling():
    return make_byte_tokenizer("value number a b")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a schema made the program open a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def tried(random, spelling, kind, value):
    """Return an answer to a constraint; None where it is refused, or has no end within a walk."""
    size, began = len(spelling.get_vocab()), time.process_time()
    try:
        found = walk(random, matcher_for(Constraint(kind, value), spelling, size), spelling, size)
    except ConstraintError:
        found = None
    assert time.process_time() - began < CPU_SECONDS, value
    return found


def test_hostile_schemas(random, spelling):
    for _ in times(600):
        value = schema(random)
        text = tried(random, spelling, "json_schema", value)
        if text is None:
            continue
        judge = jsonschema.Draft202012Validator(value)
        try:
            assert judge.is_valid(json.loads(text)), (value, text)
        except (jsonschema.SchemaError, referencing.exceptions.Unresolvable, RecursionError):
            continue  # it cannot be judged


@pytest.mark.parametrize("kind", GRAMMARS)
def test_hostile_grammars(random, spelling, kind):
    for _ in times(100):
        tried(random, spelling, kind, other(random, kind))
