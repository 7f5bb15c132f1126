"""Structured answers and calls of functions over HTTP."""

import json
import re

import jsonschema
import pytest
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper

from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.server.conftest import Client, make_server

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NAMED = {"type": "function", "function": {"name": "weather"}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "now", "description": "the time"}},
]
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}"
    "{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.id }}"
    "{{ c.function.arguments.city }}{% endfor %}{{ m.tool_call_id }}\n{% endfor %}"
)
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}


def load():
    tokenizer = make_byte_tokenizer()
    tokenizer._tokenizer.chat_template = TEMPLATE
    return make_tiny_model(max_position_embeddings=1024), tokenizer


@pytest.fixture(scope="module")
def caller():
    made = Client(make_server(load=load))
    yield made
    made.engine.stop()


def checked(call):
    assert call["type"] == "function"
    found = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        jsonschema.validate(found, SCHEMA)
    else:
        assert not found
    return found


@pytest.mark.parametrize(
    "stated",
    [
        {"response_format": FORMAT},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"constraint": {"json_schema": SCHEMA}},
    ],
    ids=", ".join,
)
def test_an_answer_fits_its_schema_and_says_how_sure_each_field_is(caller, stated):
    for seed in range(3):
        choice = caller.chat(**stated, seed=seed, max_tokens=300).choice
        found = json.loads(choice["message"]["content"])
        jsonschema.validate(found, SCHEMA)
        assert choice["finish_reason"] == "stop"
        fields = choice["entropix"]["fields"]
        assert {field["pointer"]: field["value"] for field in fields} == {
            f"/{name}": value for name, value in found.items()
        }
        assert all(0 < field["probability"] <= 1 for field in fields)
        assert choice["entropix"]["strain"]["largest"] > 0


@pytest.mark.parametrize(
    ("stated", "allowed"),
    [
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "a" | "b"'}, "a|b"),
    ],
    ids=", ".join,
)
def test_other_constraints_hold_in_chats_and_completions(caller, stated, allowed):
    answer = caller.chat(constraint=stated, max_tokens=20).choice["message"]["content"]
    assert re.fullmatch(allowed, answer)
    assert re.fullmatch(allowed, caller.complete(constraint=stated, max_tokens=20).choice["text"])


def test_answers_in_one_batch_have_constraints_of_their_own(caller):
    found = caller.chat(constraint={"regex": "[0-9]{4}"}, n=3, max_tokens=20).json["choices"]
    assert all(choice["message"]["content"].isdecimal() for choice in found)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
def test_a_call_fits_its_function_and_says_how_sure_it_is(caller, choice):
    for seed in range(3):
        options = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
        reply = caller.chat(**options, seed=seed, max_tokens=400)
        message, totals = reply.choice["message"], reply.choice["entropix"]
        [call], [sure] = message["tool_calls"], totals["tool_calls"]
        arguments = checked(call)
        if choice is NAMED:
            assert call["function"]["name"] == "weather"
        assert message["content"] is None
        assert reply.choice["finish_reason"] == "tool_calls"
        assert (sure["id"], sure["name"]) == (call["id"], call["function"]["name"])
        assert 0 < sure["confidence"] <= 1
        if arguments:
            assert {one["pointer"][1:] for one in sure["fields"]} == {*arguments}


def test_streamed_calls_are_those_of_the_whole_answer(caller):
    options = {"tools": TOOLS, "tool_choice": "required", "seed": 3, "max_tokens": 900}
    whole = caller.chat(**options).choice
    chunks = [event["choices"][0] for event in caller.chat(**options, stream=True).events]
    calls: list = []
    for chunk in chunks:
        for delta in chunk["delta"].get("tool_calls", ()):
            if delta["index"] == len(calls):
                assert delta["id"]
                calls.append({"name": delta["function"]["name"], "arguments": ""})
            else:
                assert "id" not in delta
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    assert calls == [call["function"] for call in whole["message"]["tool_calls"]]
    assert calls
    assert chunks[-1]["finish_reason"] == whole["finish_reason"]
    found, streamed = (end["entropix"]["tool_calls"] for end in (whole, chunks[-1]))
    assert [one["fields"] for one in streamed] == [one["fields"] for one in found]


def test_a_call_that_is_cut_says_so(caller):
    choice = caller.chat(tools=TOOLS, tool_choice=NAMED, max_tokens=50).choice
    assert choice["finish_reason"] == "length"
    assert choice["entropix"]["tool_calls"][0]["fields"] == []


def test_without_a_choice_the_model_may_just_answer(caller):
    message = caller.chat(tools=TOOLS, max_tokens=12).choice["message"]
    assert message["content"]
    assert "tool_calls" not in message
    both = caller.chat(tools=TOOLS, response_format=FORMAT, max_tokens=900, seed=2).choice
    if both["message"].get("tool_calls"):
        assert all(map(checked, both["message"]["tool_calls"]))
    else:
        jsonschema.validate(json.loads(both["message"]["content"]), SCHEMA)


def test_the_model_sees_tools_calls_and_results(caller):
    call = {"name": "weather", "arguments": '{"city": "Paris"}'}
    history = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_of_another", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_of_another", "content": "sunny"},
    ]
    body = {"messages": history, "tools": TOOLS, "max_tokens": 1}
    assert caller.post("/v1/chat/completions", json=body).status == 200
    shown = "weather now user:Hi\nassistant:<tool_call>123456789Paris\ntool:sunny123456789\n"
    body |= {"logprobs": True}
    tokens = caller.post("/v1/chat/completions", json=body).json["usage"]["prompt_tokens"]
    assert tokens == len(shown)
    without = caller.post("/v1/chat/completions", json=body | {"tool_choice": "none"})
    assert without.json["usage"]["prompt_tokens"] == len(shown) - len("weather now ")


def test_a_schema_that_cannot_be_followed_is_named(caller):
    wrong = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "bad_one", "parameters": wrong}}]
    for stream in (False, True):
        reply = caller.chat(tools=tools, stream=stream)
        assert (reply.status, reply.error["param"]) == (400, "tools")
        assert "bad_one" in reply.error["message"]


def test_other_constraints_and_tools_exclude_one_another(caller):
    reply = caller.chat(tools=TOOLS, constraint={"regex": "a"})
    assert (reply.status, reply.error["param"]) == (400, "constraint")


def load_thinking():
    _, tokenizer = load()
    tokenizer._tokenizer.add_tokens(["<think>", "</think>"])
    return make_tiny_model(max_position_embeddings=1024, vocab_size=260), TokenizerWrapper(
        tokenizer._tokenizer, BPEStreamingDetokenizer
    )


def test_reasoning_is_no_part_of_the_answer():
    caller = Client(make_server(load=load_thinking))
    tokens = caller.loaded.tokenizer.encode("<think>Hm.</think>")
    for stated in ({"response_format": FORMAT}, {"tools": TOOLS, "tool_choice": NAMED}):
        options = {**stated, "forced": tokens, "max_tokens": 400}
        message = caller.chat(**options).choice["message"]
        assert message["reasoning_content"] == "Hm."
        calls = message.get("tool_calls")
        answer = calls[0]["function"]["arguments"] if calls else message["content"]
        jsonschema.validate(json.loads(answer), SCHEMA)
        deltas = [e["choices"][0]["delta"] for e in caller.chat(**options, stream=True).events]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm."
    caller.engine.stop()
