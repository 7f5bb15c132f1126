"""How long a model reasons, what its template is told about it, and where its reasoning goes."""

import pytest
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper

from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.server.conftest import Client, make_server

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}({{ m.reasoning_content }}){{ style }}\n"
    "{% endfor %}{% if prefill %}<think>{% endif %}"
    "{% if enable_thinking is false %}<think></think>{% endif %}"
)
BUDGET = 5
PREFILLED = {"chat_template_kwargs": {"prefill": True}}


def load_with(template):
    def load():
        tokenizer = make_byte_tokenizer()._tokenizer
        tokenizer.chat_template = template
        tokenizer.add_tokens(["<think>", "</think>"])
        wrapped = TokenizerWrapper(tokenizer, BPEStreamingDetokenizer)
        wrapped._eos_token_ids = set()
        return make_tiny_model(max_position_embeddings=1024, vocab_size=260), wrapped

    return load


@pytest.fixture(scope="module")
def caller():
    made = Client(make_server(load=load_with(TEMPLATE)))
    yield made
    made.engine.stop()


def begun(caller):
    return {"forced": caller.loaded.tokenizer.encode("<think>")}


def read(reply, stream):
    """Return reasoning and text of a chat's answer."""
    if not stream:
        message = reply.choice["message"]
        return message.get("reasoning_content", ""), message["content"]
    deltas = [event["choices"][0]["delta"] for event in reply.events]
    return tuple("".join(d.get(n, "") for d in deltas) for n in ("reasoning_content", "content"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prefilled", [False, True])
@pytest.mark.parametrize("budget", [0, BUDGET])
def test_reasoning_ends_at_its_budget(caller, stream, prefilled, budget):
    start = PREFILLED if prefilled else begun(caller)
    options = {**start, "max_tokens": 30}
    endless, _ = read(caller.chat(**options, stream=stream), stream)
    assert len(endless) > BUDGET, "this model does not end it itself"
    reply = caller.chat(**options, thinking_budget=budget, stream=stream)
    reasoning, text = read(reply, stream)
    assert endless.startswith(reasoning)
    assert "think>" not in reasoning
    assert len(text) >= 30 - budget - 2 - 8, "the rest is the answer, in bytes that may be halves"
    if not stream:
        details = reply.json["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == budget


def test_answers_in_one_batch_keep_their_budgets(caller):
    reply = caller.chat(**PREFILLED, n=3, thinking_budget=BUDGET, max_tokens=20).json
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3 * BUDGET
    schema = {"type": "json_object"}
    options = {"thinking_budget": BUDGET, "response_format": schema, "max_tokens": 20}
    message = caller.chat(**PREFILLED, **options).choice["message"]
    assert message["content"].lstrip().startswith("{"), "a constraint begins behind the end tag"


def count(caller, **options):
    return caller.chat(**options).json["usage"]["prompt_tokens"]


def test_the_template_gets_what_a_request_tells_it(caller):
    usual = count(caller)
    assert count(caller, chat_template_kwargs={"style": "brief"}) == usual + len("brief")
    assert count(caller, chat_template_kwargs={"unknown": 1}) == usual
    assert count(caller, chat_template_kwargs={"enable_thinking": False}) == usual + 2
    assert count(caller, reasoning_effort="none") == usual + 2
    assert count(caller, reasoning_effort="medium") == usual
    told = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]
    plain = count(caller, messages=told)
    told[1]["reasoning_content"] = "So"
    assert count(caller, messages=told) == plain + len("So")


def test_templates_know_degrees_of_reasoning_or_have_no_switch():
    made = Client(make_server(load=load_with("{{ reasoning_effort }}{{ messages[0].content }}")))
    assert count(made, reasoning_effort="high") == count(made) + len("high")
    made.engine.stop()
    made = Client(make_server(load=load_with("{{ messages[0].content }}<think>")))
    reply = made.chat(reasoning_effort="none")
    assert "reasoning_content" not in reply.choice["message"]
    made.engine.stop()


def blocks(caller, **options):
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "max_tokens": 20, "sampler": "greedy", **PREFILLED, **options}
    return caller.post("/v1/messages", json=body)


def test_messages_have_thinking_where_they_ask_for_it(caller):
    thinking = {"type": "enabled", "budget_tokens": BUDGET}
    thought, text = blocks(caller, thinking=thinking).json["content"]
    assert (thought["type"], text["type"]) == ("thinking", "text")
    assert 0 < len(thought["thinking"]) <= BUDGET
    streamed = blocks(caller, thinking=thinking, stream=True).content.decode()
    assert streamed.count('"thinking_delta"') + streamed.count('"text_delta"') > 2
    assert [block["type"] for block in blocks(caller).json["content"]] in ([], ["text"])
    [block] = blocks(caller, thinking={"type": "disabled"}).json["content"]
    assert block["type"] == "text"
    assert blocks(caller, thinking={"type": "enabled"}).status == 400
    assert blocks(caller, thinking={"type": "deep"}).status == 400


def test_responses_count_reasoning(caller):
    options = {**PREFILLED, "thinking_budget": BUDGET, "max_output_tokens": 20, "seed": 2}
    body = {"input": "Hi", "reasoning": {"effort": "medium"}, **options}
    reply = caller.post("/v1/responses", json=body).json
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message"]
    assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] == BUDGET
    body["reasoning"]["effort"] = "high"
    assert caller.post("/v1/responses", json=body).error["param"] == "reasoning"
