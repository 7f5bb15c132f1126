"""Answers over HTTP against those of the library: the same tokens, numbers and text."""

import math
import re

import mlx.core as mx
import pytest

from entropix_mlx import Settings, stream_generate
from entropix_mlx.api.prompts import conversation_prompt
from tests.answer.test_forks import always_branch

PROMPT = "The quick brown fox"
IDS = list(PROMPT.encode())


@pytest.fixture
def tokenizer(byte_tokenizer):
    byte_tokenizer._eos_token_ids = set()
    yield byte_tokenizer
    byte_tokenizer._eos_token_ids = {257}


@pytest.fixture
def expected(tiny_model, tokenizer):
    def generate(prompt=PROMPT, **options):
        options = {"max_tokens": 8, "seed": 1, "profile": "reference"} | options
        return list(stream_generate(tiny_model, tokenizer, prompt, **options))

    return generate


def text_of(steps):
    return "".join(step.text for step in steps)


def test_a_completion_is_what_the_library_generates(client, expected):
    steps = expected()
    reply = client.complete()
    assert reply.status == 200
    assert reply.choice["text"] == text_of(steps)
    assert reply.choice["finish_reason"] == "length"
    assert reply.json["usage"]["completion_tokens"] == 8
    assert reply.json["usage"]["prompt_tokens"] == len(IDS)
    assert reply.json["model"] == "tiny"
    totals = reply.choice["entropix"]
    assert totals["scores"]["mean_entropy"] == pytest.approx(
        sum(s.entropy for s in steps) / 8, abs=1e-4
    )
    assert sum(totals["strategies"].values()) == 8
    assert totals["seed"] == 1


def test_messages_go_through_the_chat_template(client, expected, tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    steps = expected(conversation_prompt(tokenizer, messages))
    messages[0]["role"] = "developer"
    messages[1]["content"] = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    reply = client.post(
        "/v1/chat/completions",
        json={"messages": messages, "max_completion_tokens": 8, "seed": 1, "model": "tiny"},
    )
    message = reply.choice["message"]
    assert message == {"role": "assistant", "content": text_of(steps), "refusal": None}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.2, "top_p": 0.5},
        {"top_k": 2, "min_p": 0.1},
        {"logit_bias": {"65": 100}},
        {"presence_penalty": 2, "frequency_penalty": 1.5},
        {"repetition_penalty": 1.5},
        {"sampler": "greedy"},
        {"sampler": "xtc"},
        {"stop": ["\n", "e"], "max_tokens": 40},
    ],
    ids=", ".join,
)
def test_parameters_mean_what_they_mean_to_the_library(client, expected, options):
    assert client.complete(**options).choice["text"] == text_of(expected(**options))


def test_temperature_0_is_greedy_for_every_sampler(client, expected):
    greedy = text_of(expected(sampler="greedy"))
    for sampler in ("greedy", "temperature"):
        assert client.complete(sampler=sampler, temperature=0).choice["text"] == greedy


def test_fields_of_the_profile_can_be_changed(client, expected):
    changes = {"thresholds": {"low_entropy": 9.0, "low_varentropy": 99.0}}
    steps = expected(changes=changes)
    for body in (
        {"profile": "reference", "set": changes},
        {"set": {"thresholds.low_entropy": 9.0, "thresholds.low_varentropy": 99.0}},
    ):
        reply = client.complete(**body)
        assert reply.choice["text"] == text_of(steps)
        assert reply.choice["entropix"]["strategies"] == {"argmax": 8}


def test_interventions_can_be_left_out(client):
    profile = {"branch": {"margin": 0.0, "min_gap": 1}, "thresholds": {}}
    for name in ("branch_max_entropy", "branch_min_varentropy", "low_entropy"):
        profile["thresholds"][name] = 99.0 if "max" in name else -1.0
    totals = client.complete(set=profile, branch=True, max_tokens=12).choice["entropix"]
    assert totals["forks"] > 0
    totals = client.complete(set=profile, branch=False, think=False).choice["entropix"]
    assert (totals["forks"], totals["insertions"]) == (0, 0)


def test_several_answers_have_seeds_that_follow_one_another(client, expected):
    reply = client.complete([PROMPT, IDS[:9]], n=2, seed=5)
    found = [choice["text"] for choice in reply.json["choices"]]
    prompts = [PROMPT, PROMPT, IDS[:9], IDS[:9]]
    assert found == [text_of(expected(p, seed=5 + n % 2)) for n, p in enumerate(prompts)]
    assert [choice["index"] for choice in reply.json["choices"]] == [0, 1, 2, 3]
    assert reply.json["usage"]["prompt_tokens"] == len(IDS) + 9


def test_an_answer_can_go_on_from_its_beginning(client, expected):
    steps = expected(max_tokens=12)
    prefix = [step.token for step in steps[:5]]
    stream = client.complete(prefix=prefix, max_tokens=7, stream=True).events[:-1]
    found = [event["choices"][0]["entropix"]["token"] for event in stream]
    assert found == [step.token for step in steps[5:]]
    assert client.chat(prefix="Well").status == 200
    begun = client.complete(prefix=prefix, forced=[70, 71], max_tokens=3, stream=True).events[:-1]
    found = [event["choices"][0]["entropix"] for event in begun]
    assert [step["token"] for step in found][:2] == [70, 71]
    assert [step["origin"] for step in found] == ["chosen", "chosen", "sampled"]


def test_log_probabilities_in_the_shape_of_chats(client, expected):
    reply = client.chat(logprobs=True, top_logprobs=3)
    for entry in reply.choice["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 3
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
        assert entry["logprob"] <= 0
        best = [one["logprob"] for one in entry["top_logprobs"]]
        assert best == sorted(best, reverse=True)
    assert client.chat().choice["logprobs"] is None


def test_the_prompt_can_be_scored(client, tiny_model, tokenizer):
    ids = tokenizer.encode(PROMPT)
    logits = tiny_model(mx.array([ids]), tiny_model.make_cache()).logits[0]
    scores = (logits - mx.logsumexp(logits, axis=-1, keepdims=True)).tolist()
    true = [scores[n][token] for n, token in enumerate(ids[1:])]
    for body in ({"max_tokens": 0}, {"max_tokens": 1}, {"prompt": ids, "max_tokens": 1, "n": 2}):
        reply = client.complete(**{"prompt": PROMPT, "echo": True, "logprobs": 2} | body)
        choice = reply.choice
        found = choice["logprobs"]["token_logprobs"]
        assert found[0] is None
        assert found[1 : len(ids)] == pytest.approx(true, abs=1e-4)
        assert len(found) == len(ids) + body["max_tokens"]
        best = choice["logprobs"]["top_logprobs"]
        for n, (token, top) in enumerate(zip(ids[1:], best[1:], strict=False)):
            assert max(top.values()) == pytest.approx(max(scores[n]), abs=1e-4)
            assert top[choice["logprobs"]["tokens"][n + 1]] == found[n + 1], token
        assert choice["text"].startswith(PROMPT)
        assert choice["logprobs"]["text_offset"][: len(ids)] == list(range(len(ids)))


def test_texts_are_scored_without_an_answer(client):
    tokens = client.loaded.tokenizer.encode(PROMPT)
    body = {"prompt": [PROMPT, tokens], "top_logprobs": 2}
    reply = client.post("/v1/score", json=body).json
    echoed = client.complete(echo=True, max_tokens=0, logprobs=2).choice["logprobs"]
    assert [one["index"] for one in reply["data"]] == [0, 1]
    for one in reply["data"]:
        assert one["logprobs"]["token_logprobs"][1:] == pytest.approx(echoed["token_logprobs"][1:])
        assert one["score"] == pytest.approx(sum(echoed["token_logprobs"][1:]))
    assert reply["usage"]["completion_tokens"] == 0
    refused = client.post("/v1/score", json={"prompt": PROMPT, "max_tokens": 5})
    assert (refused.status, refused.error["param"]) == (400, "max_tokens")


def test_text_offsets_follow_the_text(client):
    choice = client.complete("naïve ☃", echo=True, logprobs=0, max_tokens=0).choice
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert "".join(choice["text"]) == "naïve ☃"
    assert tokens[2] == "bytes:\\xc3"
    assert offsets == [0, 1, 2, 2, 3, 4, 5, 6, 6, 6]


def test_a_stream_is_the_answer_in_pieces(client):
    whole = client.chat(logprobs=True, n=2).json
    options = {"include_usage": True}
    reply = client.chat(logprobs=True, n=2, stream=True, stream_options=options)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = reply.events
    assert usage["choices"] == []
    del usage["usage"]["prompt_tokens_details"], whole["usage"]["prompt_tokens_details"]
    assert usage["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)
    for choice in whole["choices"]:
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert own[-1]["finish_reason"] == choice["finish_reason"] == "length"
        assert "".join(c["delta"].get("content", "") for c in own) == choice["message"]["content"]
        logprobs = [entry for c in own[1:-1] for entry in c["logprobs"]["content"]]
        assert [e["token"] for e in logprobs] == [e["token"] for e in choice["logprobs"]["content"]]
        assert all(math.isfinite(c["entropix"]["varentropy"]) for c in own[1:-1])
        assert own[-1]["entropix"]["seed"] == choice["entropix"]["seed"]


def test_a_streamed_completion_can_repeat_its_prompt(client):
    whole = client.complete(echo=True, logprobs=1).choice
    chunks = [
        event["choices"][0] for event in client.complete(echo=True, logprobs=1, stream=True).events
    ]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    parts = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
    for name in ("tokens", "text_offset"):
        assert [item for part in parts for item in part[name]] == whole["logprobs"][name]


def test_models_health_and_metrics(client):
    client.chat()
    assert [model["id"] for model in client.get("/v1/models").json["data"]] == ["tiny"]
    assert client.get("/v1/models/tiny").json["object"] == "model"
    assert client.get("/health").json == {"status": "ok"}
    lines = client.get("/metrics").content.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["entropix_generation_tokens_total"]) >= 8
    assert (
        float(values['entropix_http_requests_total{route="/v1/chat/completions",status="200"}'])
        >= 1
    )
    assert float(values["entropix_time_to_first_token_seconds_count"]) >= 1
    assert sum(float(v) for name, v in values.items() if "strategies_total" in name) >= 8
    described = [line.split(" ", 3)[1:3] for line in lines if line.startswith("#")]
    for name in (name.partition("{")[0] for name in values):
        family = re.sub("_(bucket|sum|count)$", "", name)
        assert ["HELP", family] in described
        assert ["TYPE", family] in described
    for family in ("time_to_first_token_seconds", "token_entropy_bits", "answer_confidence"):
        buckets = [float(v) for n, v in values.items() if n.startswith(f"entropix_{family}_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == float(values[f"entropix_{family}_count"]) > 0


def test_settings_of_the_server_hold_where_a_request_says_nothing(own_client, expected):
    settings = Settings(max_tokens=5, sampler="greedy", profile=always_branch())
    client = own_client(settings=settings)
    messages = [{"role": "user", "content": "Hi"}]
    reply = client.post("/v1/chat/completions", json={"messages": messages})
    assert reply.json["usage"]["completion_tokens"] == 5
    assert client.complete(seed=None).choice["text"] == text_of(expected(sampler="greedy"))


def test_one_of_several_answers_is_what_the_library_chooses(client, expected):
    count = {"answers": {"count": 3}}
    steps = expected(answers="auto", budget=8, changes=count, sampler="greedy")
    own = {"sampler": "greedy", "budget": 8, "set": {"answers.count": 3}}
    replies = [client.complete(**own, answers="auto"), client.complete(**own, answers=3)]
    for reply in replies:
        record = reply.choice["entropix"]["answers"]
        assert reply.choice["text"] == record["answers"][record["chosen"]]["text"]
        assert len(record["answers"]) == 3
    assert replies[0].choice["text"] == text_of(steps)
    streamed = client.complete(**own, answers="auto", stream=True).events
    assert "".join(event["choices"][0]["text"] for event in streamed) == text_of(steps)
    assert streamed[-1]["choices"][0]["entropix"]["answers"]["stopped"] in ("all", "budget")
    assert "answers" not in client.chat(**own).choice["entropix"]
    both = client.chat(**own, answers=2, n=2).json["choices"]
    assert [len(one["entropix"]["answers"]["answers"]) for one in both] == [2, 2]


def test_a_loop_ends_an_answer_where_that_is_asked_for(client):
    tokens = client.loaded.tokenizer.encode("the same. ") * 12
    options = {"forced": tokens, "max_tokens": len(tokens)}
    for ask in (client.chat, client.complete):
        choice = ask(**options, loops="stop").choice
        assert (choice["finish_reason"], choice["entropix"]["stopped"]) == ("stop", "loop")
        last = ask(**options, loops="stop", stream=True).events[-1]["choices"][0]
        assert (last["finish_reason"], last["entropix"]["stopped"]) == ("stop", "loop")
        choice = ask(**options).choice
        assert (choice["finish_reason"], choice["entropix"]["stopped"]) == ("length", None)
    choice = client.complete(**options, loops="stop", constraint={"regex": "(?s:.*)"}).choice
    assert choice["entropix"]["stopped"] is None, "constrained answers are left alone"


def test_what_asks_for_nothing_changes_nothing(client):
    nothing = {"user": "a", "metadata": {}, "service_tier": "auto", "top_k": None}
    assert client.chat(**nothing).choice["message"] == client.chat().choice["message"]
