"""/v1/responses and /v1/messages mean what the same chat means."""

import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.server.conftest import Client, make_server
from tests.server.test_tools import SCHEMA, load, load_thinking

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HI = [{"role": "user", "content": "Hi"}]
CALLABLE = {"type": "function", "name": "weather", "parameters": SCHEMA}
USABLE = {"name": "weather", "input_schema": SCHEMA}
FORMAT = {"type": "json_schema", "name": "place", "schema": SCHEMA}
RESPONSE = TypeAdapter(Response)
RESPONSE_EVENT = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def caller():
    made = Client(make_server(load=load))
    yield made
    made.engine.stop()


def respond(caller, given="Hi", **body):
    return caller.post(RESPONSES, json={"input": given, "max_output_tokens": 8, "seed": 1} | body)


def write(caller, messages=HI, **body):
    given = {"messages": messages, "max_tokens": 8, "seed": 1} | body
    return caller.post(MESSAGES, json=given)


def events(reply):
    """Return the events of a stream, each of which is named by its type."""
    found = []
    for piece in reply.content.decode().split("\n\n")[:-1]:
        name, data = piece.split("\n", 1)
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


KINDS = [
    {},
    {"tools": [CALLABLE], "tool_choice": {"type": "function", "name": "weather"}},
    {"text": {"format": FORMAT}},
    {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
]


@pytest.mark.parametrize("body", KINDS, ids=", ".join)
def test_a_response_is_the_chat_and_its_stream_adds_up_to_it(caller, body):
    body = body | {"max_output_tokens": 300 if body else 8, "store": False}
    whole = respond(caller, **body).json
    RESPONSE.validate_python(whole)
    streamed = events(respond(caller, **body, stream=True))
    for event in streamed:
        RESPONSE_EVENT.validate_python(event)
    assert [event["sequence_number"] for event in streamed] == [*range(len(streamed))]
    [item], [last] = whole["output"], streamed[-1]["response"]["output"]
    assert whole["status"] == streamed[-1]["response"]["status"]
    if item["type"] == "message":
        text = "".join(e["delta"] for e in streamed if e["type"] == "response.output_text.delta")
        assert text == item["content"][0]["text"] == last["content"][0]["text"]
        assert bool(item["content"][0]["logprobs"]) == ("top_logprobs" in body)
    else:
        kind = "response.function_call_arguments.delta"
        arguments = "".join(event["delta"] for event in streamed if event["type"] == kind)
        assert json.loads(arguments) == json.loads(item["arguments"])
        assert arguments == last["arguments"]
    assert whole["entropix"]["confidence"] == pytest.approx(
        streamed[-1]["response"]["entropix"]["confidence"]
    )


def test_a_plain_response_is_that_of_the_chat(caller):
    chat = caller.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 8, "seed": 1})
    found = respond(caller).json
    assert found["output"][0]["content"][0]["text"] == chat.choice["message"]["content"]
    assert found["usage"]["input_tokens"] == chat.json["usage"]["prompt_tokens"]
    assert found["status"] == "incomplete"
    message = write(caller).json
    assert message["content"] == [{"type": "text", "text": chat.choice["message"]["content"]}]
    assert message["stop_reason"] == "max_tokens"


def test_a_response_can_be_continued_by_its_items(caller):
    body = {"tools": [CALLABLE], "tool_choice": "required", "max_output_tokens": 300}
    body |= {"parallel_tool_calls": False}
    first = respond(caller, **body).json
    [call] = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    more = {"tools": [CALLABLE], "tool_choice": "none"}
    question = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    plain = respond(caller, [question, call, result], **more).json["output"]
    reasoned = respond(caller, [question, thought, call, result], **more).json["output"]
    assert reasoned[0]["content"] == plain[0]["content"]


def test_reasoning_is_an_item_of_its_own():
    caller = Client(make_server(load=load_thinking))
    tokens = caller.loaded.tokenizer.encode("<think>Hm.</think>So")
    options = {"forced": tokens, "max_output_tokens": 12, "sampler": "greedy"}
    response = respond(caller, **options).json
    RESPONSE.validate_python(response)
    thought, message = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    streamed = events(respond(caller, **options, stream=True))
    for event in streamed:
        RESPONSE_EVENT.validate_python(event)
    kind = "response.reasoning_text.delta"
    assert "".join(event["delta"] for event in streamed if event["type"] == kind) == "Hm."
    blocks = write(caller, forced=tokens, max_tokens=12, sampler="greedy").json["content"]
    assert blocks == [{"type": "text", "text": message["content"][0]["text"]}]
    caller.engine.stop()


def test_messages_stream_what_they_are(caller):
    choice = {"type": "tool", "name": "weather"}
    for body in ({}, {"tools": [USABLE], "tool_choice": choice, "max_tokens": 300}):
        whole = write(caller, **body).json
        streamed = events(write(caller, **body, stream=True))
        [block] = whole["content"]
        deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
        if body:
            arguments = "".join(delta["partial_json"] for delta in deltas)
            assert json.loads(arguments) == block["input"]
            assert whole["stop_reason"] == "tool_use"
        else:
            assert "".join(delta["text"] for delta in deltas) == block["text"]
        kinds = list(dict.fromkeys(event["type"] for event in streamed))
        assert kinds == [
            *("message_start", "content_block_start", "content_block_delta"),
            *("content_block_stop", "message_delta", "message_stop"),
        ]
        assert streamed[-2]["delta"]["stop_reason"] == whole["stop_reason"]
        assert streamed[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_blocks_of_messages_are_messages_of_a_chat(caller):
    use = {"type": "tool_use", "id": "123456789", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "123456789", "content": "sunny"}
    messages = [
        *HI,
        {"role": "assistant", "content": [{"type": "text", "text": "Well"}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    body = {"system": [{"type": "text", "text": "Be brief"}], "tools": [USABLE]}
    shown = (
        "weather system:Be brief\nuser:Hi\nassistant:Well<tool_call>123456789Rome\n"
        "tool:sunny123456789\nuser:So?\n"
    )
    usage = write(caller, messages, **body).json["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(shown)
    begun = [*HI, {"role": "assistant", "content": "The"}]
    assert write(caller, begun).json["content"] == write(caller, prefix="The").json["content"]


def test_messages_name_the_stop_sequence(caller):
    text = write(caller, max_tokens=40).json["content"][0]["text"]
    wanted = next(character for character in text[5:] if character.isascii())
    found = write(caller, max_tokens=40, stop_sequences=["never written", wanted]).json
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", wanted)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((RESPONSES, {"input": given}) for given in (None, [], [7], [{"role": "user"}], {})),
        *(
            (RESPONSES, {"input": "a", name: True})
            for name in ("background", "n", "colour", "previous_response_id")
        ),
        (RESPONSES, {"input": [{"type": "computer_call"}]}),
        (RESPONSES, {"input": "a", "tools": [{"type": "web_search"}]}),
        (RESPONSES, {"input": "a", "reasoning": {"effort": "high"}}),
        (RESPONSES, {"input": "a", "text": {"format": {"type": "xml"}}}),
        (RESPONSES, {"input": "a", "truncation": "auto"}),
        (MESSAGES, {"messages": HI}),
        *((MESSAGES, {"messages": given, "max_tokens": 1}) for given in (None, [], [7], ["a"])),
        (MESSAGES, {"messages": [{"role": "user", "content": []}], "max_tokens": 1}),
        (MESSAGES, {"messages": [{"role": "system", "content": "a"}], "max_tokens": 1}),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        (MESSAGES, {"messages": HI, "max_tokens": 1, "tools": [{}]}),
        (MESSAGES, {"messages": HI, "max_tokens": 1, "tools": [{"type": "bash"}]}),
        (MESSAGES, {"messages": HI, "max_tokens": 1, "thinking": {"type": "enabled"}}),
        (MESSAGES, {"messages": HI, "max_tokens": 1, "thinking": 5}),
        (MESSAGES, {"messages": HI, "max_tokens": 1, "stop_sequences": ["a"] * 17}),
        (MESSAGES, {"messages": HI, "max_tokens": 1, "stop_sequences": ["a" * 513]}),
        (RESPONSES, {"input": [{"type": "function_call"}] * 100_000}),
        (RESPONSES, {"input": [{"role": "assistant", "tool_calls": 5}, {"type": "function_call"}]}),
    ],
    ids=lambda value: str(value)[:80],
)
def test_mistakes_are_described_as_each_protocol_does(caller, path, body):
    reply = caller.post(path, json=body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["message"]
    assert (reply.json.get("type") == "error") == (path == MESSAGES)
