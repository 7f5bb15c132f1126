"""Fields: every leaf of any JSON text is found where it stands, with exactly its own tokens."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.constraints.fields import fields_of, leaves
from entropix_mlx.step import Alternative
from tests.steps import make_step

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
spellings = st.builds(dict, indent=st.sampled_from([None, 0, 2]), ensure_ascii=st.booleans())


def pointed(value, pointer):
    for key in pointer.split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


@given(values, spellings)
def test_leaves_are_where_their_pointers_lead(value, spelling):
    text = f" {json.dumps(value, **spelling)}\n"
    for leaf in leaves(text):
        assert json.dumps(pointed(value, leaf.pointer)) == json.dumps(leaf.value)
        assert json.dumps(json.loads(text[leaf.begin : leaf.end])) == json.dumps(leaf.value)


@given(st.text(alphabet='{}[]",:1 tnul\\e', max_size=12))
def test_what_json_refuses_has_no_leaves(text):
    try:
        json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"\S"):
            leaves(text)
    else:
        leaves(text)


def test_a_text_nested_too_deeply_has_no_leaves():
    with pytest.raises(ValueError, match="deep"):
        leaves("[" * 100_000)


@given(values, spellings, st.data())
def test_a_field_has_the_tokens_that_have_a_character_of_it(value, spelling, data):
    text = json.dumps(value, **spelling)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    ends = [*cuts, len(text)]
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], ends, strict=True)]
    steps = [
        make_step(index, piece, logprob=-0.1 * (index + 1), strain=0.0)
        for index, piece in enumerate(pieces)
    ]
    found = fields_of(steps)
    assert [field.pointer for field in found] == [leaf.pointer for leaf in leaves(text)]
    for field, leaf in zip(found, leaves(text), strict=True):
        own = [
            step
            for step, end in zip(steps, ends, strict=True)
            if step.text and end > leaf.begin and end - len(step.text) < leaf.end
        ]
        assert field.first <= own[0].index <= own[-1].index == field.last
        # Steps without text belong to the character that the next one completes.
        inside = steps[field.first : field.last + 1]
        assert all(not step.text for step in inside if step not in own)
        total = math.fsum(step.logprob for step in inside)
        assert field.probability == pytest.approx(math.exp(total))
        assert field.least == pytest.approx(math.exp(min(step.logprob for step in inside)))


def test_alternatives_are_other_values_and_no_other_spellings():
    allowed = tuple(
        Alternative(number, text, math.log(p))
        for number, (text, p) in enumerate([("true", 0.6), ("false", 0.3), ("t", 0.09)])
    )
    steps = [
        make_step(0, '{"on":', strain=0.0),
        make_step(1, "true", logprob=-3.0, strain=2.0, allowed=allowed),
        make_step(2, "}", strain=0.0),
    ]
    [field] = fields_of(steps)
    assert field.value is True
    assert field.strain == 2.0
    assert [(one.step, one.token, one.text) for one in field.alternatives] == [(1, 1, "false")]


def test_an_answer_that_is_cut_off_has_no_fields():
    assert fields_of([make_step(0, '{"on":', strain=0.0)]) == []


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}'])
def test_constants_that_json_lacks_are_refused(text):
    with pytest.raises(ValueError, match=r"\S"):
        leaves(text)


def test_a_number_beyond_a_float_can_be_written_as_json_again():
    [leaf] = leaves("1e999")
    assert json.loads(json.dumps(leaf.value, allow_nan=False)) == "1e999"
