"""What a model writes in each format: the grammar allows it, and the reader finds it."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from entropix_mlx.api.prompts import conversation_text
from entropix_mlx.api.tools import call_format, special_tokens
from entropix_mlx.constraints.constraint import Constraint
from entropix_mlx.constraints.matcher import matcher_for
from entropix_mlx.errors import ConstraintError
from entropix_mlx.tools.formats import HERMES, LLAMA, MISTRAL_LIST, MISTRAL_NAMES, Function
from entropix_mlx.tools.reader import CallReader, ReasoningReader
from tests.conftest import make_byte_tokenizer

FORMATS = {"hermes": HERMES, "list": MISTRAL_LIST, "names": MISTRAL_NAMES, "llama": LLAMA}
WEATHER = Function(
    "weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
FUNCTIONS = [WEATHER, Function("now"), Function("nowhere")]
ARGUMENTS = st.fixed_dictionaries({"city": st.text(max_size=8)}, optional={"days": st.integers()})
CALLS = st.lists(
    st.tuples(st.just("weather"), ARGUMENTS) | st.tuples(st.just("now"), st.just({})),
    min_size=1,
    max_size=3,
)
TEXTS = st.text('ab<{["\n ', max_size=8) | st.sampled_from(["<tool_call", "[TOOL_", '{"name'])


def written(form, calls, **options):
    """Return calls as a model writes them."""
    one = (
        form.before.replace("{name}", name) + json.dumps(arguments, **options) + form.after
        for name, arguments in calls
    )
    return form.start + form.between.join(one) + form.end


def split(text, cuts):
    ends = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[begin:end] for begin, end in pairwise(ends)]


def read(form, pieces):
    """Return what a reader finds: the text, the calls, and the arguments as they came."""
    reader = CallReader(form)
    added = [one for piece in pieces for one in reader.add(piece)] + reader.finish()
    text = "".join(one.text for one in added if one.call is None)
    streamed = [""] * len(reader.calls)
    for one in added:
        if one.call is not None:
            streamed[one.call] += one.text
    assert streamed == [call.arguments for call in reader.calls]
    return text, [(call.name, json.loads(call.arguments)) for call in reader.calls]


@given(st.sampled_from(list(FORMATS.values())), TEXTS, CALLS, st.lists(st.integers(0, 400)))
def test_the_reader_finds_text_and_calls_however_they_are_cut(form, text, calls, cuts):
    calls = calls if form.several else calls[:1]
    text = text if form.start else ""
    answer = text + written(form, calls)
    if form.start and answer.index(form.marker) < len(text):
        return
    assert read(form, split(answer, cuts)) == (text, calls)


@given(st.sampled_from(list(FORMATS.values())), TEXTS, st.lists(st.integers(0, 400)))
def test_a_text_without_calls_stays_as_it_is(form, text, cuts):
    assert read(form, split(text, cuts)) == (text, [])


def separate(is_open, pieces):
    reader = ReasoningReader("<think>", "</think>", is_open)
    found = [reader.add(piece) for piece in pieces] + [reader.finish()]
    return tuple(map("".join, zip(*found, strict=True)))


@given(TEXTS, TEXTS, st.lists(st.integers(0, 60)))
def test_reasoning_is_what_stands_between_its_tags(thought, text, cuts):
    both = f"{thought}</think>\n{text}"
    assert separate(True, split(both, cuts)) == (thought, text.lstrip("\n"))
    assert separate(False, split(f"\n<think>{both}", cuts)) == (thought, text.lstrip("\n"))
    assert separate(True, split(thought, cuts)) == (thought, "")  # it was cut
    assert separate(False, split(text, cuts)) == ("", text)


@pytest.fixture(scope="module")
def tokenizer():
    made = make_byte_tokenizer()
    added = [AddedToken(text, special=True) for text in ("[TOOL_CALLS]", "[ARGS]", "<other>")]
    made._tokenizer.add_tokens(added, special_tokens=True)
    return made


def fits(tokenizer, grammar, text):
    """Return whether a whole text matches a grammar."""
    matcher = matcher_for(Constraint("grammar", grammar), tokenizer, len(tokenizer))
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return matcher.fitting([*tokens, tokenizer.eos_token_id]) > len(tokens)


PARIS = ("weather", {"city": "Paris"})


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_the_grammar_allows_text_and_calls_that_fit_the_schemas(tokenizer, form):
    free, must, one = (
        form.grammar(FUNCTIONS, special_tokens(tokenizer), required=required, several=several)
        for required, several in ((False, True), (True, True), (False, False))
    )
    call, pair = written(form, [PARIS]), written(form, [PARIS, ("now", {})])
    for whole in (call, written(form, [("now", {})]), written(form, [("nowhere", {})])):
        assert fits(tokenizer, free, whole)
        assert fits(tokenizer, must, whole)
    assert fits(tokenizer, free, written(form, [PARIS], indent=1))
    assert fits(tokenizer, free, pair) == fits(tokenizer, must, pair) == form.several
    assert not fits(tokenizer, one, pair)
    for text in ("", "Hello", '{"a": 1}', "a <other> b"):
        assert fits(tokenizer, free, text)
        assert not fits(tokenizer, must, text)
    assert fits(tokenizer, free, "Hello " + call)
    assert not fits(tokenizer, must, "Hello " + call)
    for wrong in (("weather", {"town": "Paris"}), ("weather", {}), ("other", {})):
        assert not fits(tokenizer, free, written(form, [wrong]))


@pytest.mark.parametrize("form", [HERMES, MISTRAL_LIST, MISTRAL_NAMES], ids=[*FORMATS][:3])
def test_an_answer_without_calls_may_have_to_be_json(tokenizer, form):
    options = {"required": False, "several": True, "answer": '%json {"type": "object"}'}
    grammar = form.grammar(FUNCTIONS, special_tokens(tokenizer), **options)
    assert fits(tokenizer, grammar, '{"a": 1}')
    assert fits(tokenizer, grammar, written(form, [PARIS]))
    assert not fits(tokenizer, grammar, "Hello")


def test_a_schema_cannot_switch_off_its_own_rules(tokenizer):
    wrong = {"type": "object", "propertyNames": {"not": {}}, "x-guidance": {"lenient": True}}
    grammar = HERMES.grammar([Function("f", wrong)], {}, required=True, several=True)
    with pytest.raises(ConstraintError):
        fits(tokenizer, grammar, "")


LIST = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}TOOLS{% endif %}"
TEMPLATES = {
    "hermes": LIST + "{% if tool_call %}<tool_call>{{ tool_call.name }}{% endif %}",
    "list": LIST + "[TOOL_CALLS]",
    "names": LIST + "[TOOL_CALLS][ARGS]",
    "llama": LIST + '{# {"name": "f", "parameters": {}} #}',
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_chat_template_says_how_calls_are_written(name):
    tokenizer = make_byte_tokenizer()
    tokenizer._tokenizer.chat_template = TEMPLATES[name]
    assert call_format(tokenizer) is FORMATS[name]


def test_a_template_without_tools_has_no_format():
    tokenizer = make_byte_tokenizer()
    assert call_format(tokenizer) is None
    tokenizer._tokenizer.chat_template = LIST
    assert call_format(tokenizer) is None  # tools, but no way to call them that is known


def test_a_template_may_need_tools():
    tokenizer = make_byte_tokenizer()
    template = "{% for t in tools %}{{ t.function.name }} <tool_call>{% endfor %}"
    tokenizer._tokenizer.chat_template = template
    assert call_format(tokenizer) is HERMES


def test_other_formats_are_read_with_the_parsers_of_mlx_lm():
    tokenizer = make_byte_tokenizer()
    tokenizer._tokenizer.chat_template = LIST + "<|tool_call><tool_call|>"
    form = call_format(tokenizer)
    call = '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
    weather = ("weather", {"city": "Paris", "days": 3})
    for cuts in ([], [3, 9, 40, 70], range(200)):
        assert read(form, split(f"Well {call}{call}", cuts)) == ("Well ", [weather] * 2)
        assert read(form, split(f"{call[:-12]}", cuts))[1] == [weather]  # the end was cut off
        assert read(form, split("<|tool_call>nonsense<tool_call|>", cuts))[1] == []
    with pytest.raises(ConstraintError):
        form.grammar(FUNCTIONS, {}, required=True, several=True)


def test_tools_are_rendered_by_the_template():
    tokenizer = make_byte_tokenizer()
    tokenizer._tokenizer.chat_template = "{{ messages[0].content }}{{ tools | tojson }}"
    messages = [{"role": "user", "content": "Hi "}]
    tool = {"type": "function", "function": {"name": "f"}}
    assert conversation_text(tokenizer, messages, [tool]) == "Hi " + json.dumps([tool])
