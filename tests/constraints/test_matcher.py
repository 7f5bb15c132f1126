"""Constraints that are compiled: what they let through, and what is refused, and where."""

import json

import jsonschema
import pytest

from entropix_mlx.constraints.constraint import Constraint
from entropix_mlx.constraints.matcher import matcher_for
from entropix_mlx.errors import ConstraintError
from tests.conftest import make_byte_tokenizer

SCHEMA = "json_schema"
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LAX = {"x-guidance": {"item_separator": ";", "whitespace_pattern": " +"}, "type": "array"}


@pytest.fixture(scope="module")
def spelling():
    return make_byte_tokenizer("value number a b")


@pytest.fixture
def compiled(spelling):
    def compiled(kind, value):
        return matcher_for(Constraint(kind, value), spelling, len(spelling.get_vocab()))

    return compiled


@pytest.fixture
def takes(compiled, spelling):
    """Tells whether a constraint allows a text as a whole."""

    def takes(kind, value, text):
        matcher = compiled(kind, value)
        tokens = [*spelling.encode(text, add_special_tokens=False), spelling.eos_token_id]
        return matcher.fitting(tokens) == len(tokens)

    return takes


@pytest.mark.parametrize(
    ("schema", "text", "fits"),
    [
        (OPEN, '{"a": 1, "b": []}', True),
        (OPEN, '{"a": 1, "\\u0061": "x"}', False),  # takes the place of the first
        (OPEN, '{"a": 1, "a": "x"}', False),
        (OPEN, '{\n  "a": 1\n}', True),
        (OPEN, '{\n\n  "a": 1\n}', False),
        (OPEN, '{  "a": 1}', False),
        (LAX, "[1, 2]", True),
        (LAX, "[1; 2]", False),
        (LAX, "[1,    2]", False),
    ],
)
def test_what_a_schema_lets_through(takes, schema, text, fits):
    assert takes(SCHEMA, schema, text) == fits
    if fits:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("text", ['a "b" \\ /c/ \n\t', "é 😀\u2028", "a|b*[", "\x00\x7f"])
def test_a_choice_may_have_any_characters(takes, text):
    assert takes("choice", [text, "b"], text)
    assert not takes("choice", [text, "b"], text + "b")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("choice", [f"value number {number}" for number in range(3000)]),
        (SCHEMA, {"type": "object", "properties": {f"p{n}": {"type": "null"} for n in range(600)}}),
    ],
)
def test_large_constraints_that_are_honest_are_followed(takes, kind, value):
    text = value[-1] if kind == "choice" else '{"p3": null, "p599": null}'
    assert takes(kind, value, text)


REFUSED = [
    ({"properties": {"a": {"items": {"not": {}}}}}, "not"),
    ({"$defs": {"x": {"contains": {}}}, "properties": {"a": {"$ref": "#/$defs/x"}}}, "contains"),
    ({"anyOf": [{}, {"type": "string", "format": "colour"}]}, "colour"),
    ({"properties": {"a/b": {"$ref": "https://example.org/x"}}}, "https://example.org/x"),
    ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"minimum": 3}]}}}, "oneOf"),
    ({"items": {"type": "object", "minProperties": 2}}, "minProperties"),
    ({"x-guidance": {"lenient": True}, "properties": {"a": {"uniqueItems": True}}}, "uniqueItems"),
    ({"x-guidance": {"coerce_one_of": True}, "oneOf": [{"type": "integer"}, {}]}, "oneOf"),
]


@pytest.mark.parametrize(("schema", "keyword"), REFUSED)
def test_a_refusal_names_the_keyword(compiled, schema, keyword):
    with pytest.raises(ConstraintError) as refused:
        compiled(SCHEMA, schema)
    assert keyword in str(refused.value)


def test_values_that_look_like_a_schema_are_no_schema(compiled):
    compiled(SCHEMA, {"properties": {"minProperties": {}}, "enum": [{"minProperties": 5}]})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "a{1000000000}"),
        ("regex", r"[^\s\S]"),
        ("regex", "(" * 3000 + "a" + ")" * 3000),
        ("regex", "\ud800"),
        ("choice", ["\ud800"]),
        ("grammar", "start: start"),
        ("grammar", "start: " + "a " * 60_000 + '\na: "x"'),
        (SCHEMA, {"type": "object", "properties": {f"p{n}": {} for n in range(4000)}}),
        (SCHEMA, {"type": "object", "required": ["a"], "properties": {"a": False}}),
        (SCHEMA, {"const": "\ud800"}),
    ],
)
def test_what_is_too_large_or_matches_nothing_is_refused_when_it_is_compiled(compiled, kind, value):
    with pytest.raises(ConstraintError):
        compiled(kind, value)
