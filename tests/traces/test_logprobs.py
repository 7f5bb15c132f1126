"""Answers that other programs recorded, as view and report read them."""

import asyncio
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx import cli
from entropix_mlx.errors import TraceError
from entropix_mlx.traces.logprobs import RECORDED_BOUND, least_entropy, read_answer

HELLO = [("Hello", [72, 101, 108, 108, 111], -0.1), ("!", [33], -0.5), ("\\xe2", [226], -1.0),
         ("\\x86\\x92", [134, 146], -0.2)]  # fmt: skip


def chat(with_bytes=True, tops=2, **more):
    """Return a response as OpenAI's reference shows it; without bytes as some servers have it."""

    def listed(token, raw, logprob):
        return {"token": token, "logprob": logprob} | ({"bytes": raw} if with_bytes else {})

    content = [
        listed(token, raw, logprob)
        | {"top_logprobs": [listed(token, raw, logprob), listed("x", [120], -3.0)][:tops]}
        for token, raw, logprob in HELLO
    ]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant"}}
    choice["logprobs"] = {"content": content, "refusal": None}
    return {"object": "chat.completion", "model": "gpt-x", "choices": [choice], **more}


def completion():
    texts = ["Hello", "!", "bytes:\\xe2", "bytes:\\x86\\x92"]
    logprobs = {
        "tokens": ["Once", *texts],
        "token_logprobs": [None, *(logprob for *_, logprob in HELLO)],
        "top_logprobs": [None, *({text: -0.1, "x": -3.0} for text in texts)],
        "text_offset": [0, 4, 9, 10, 10],
    }
    choice = {"index": 0, "text": "Hello!→", "logprobs": logprobs, "finish_reason": "length"}
    return {"object": "text_completion", "model": "gpt-x", "choices": [choice]}


def written(folder, *responses):
    file = folder / "responses.jsonl"
    file.write_text("\n".join(map(json.dumps, responses)) + "\n")
    return file


@pytest.mark.parametrize("response", [chat(), completion(), {"response": {"body": chat()}}])
def test_responses_are_read(response, tmp_path):
    trace = read_answer(written(tmp_path, response))
    assert "".join(step.text for step in trace.steps) == "Hello!→"
    assert [step.logprob for step in trace.steps] == [-0.1, -0.5, -1.0, -0.2]
    assert (trace.header.model, trace.header.sampler) == ("gpt-x", RECORDED_BOUND)
    assert trace.finish_reason in ("stop", "length")


@pytest.mark.parametrize("tops", [0, 1, 2])
@pytest.mark.parametrize("with_bytes", [True, False])
def test_any_of_them_becomes_a_page(with_bytes, tops, tmp_path, capsys):
    (tmp_path / "responses.json").write_text(json.dumps(chat(with_bytes, tops), indent=2))
    assert cli.main(["report", str(tmp_path)]) == 0
    page = capsys.readouterr().out
    assert "gpt-x" in page
    assert RECORDED_BOUND in page


def test_what_the_server_answers_is_read(tmp_path, tiny_model, byte_tokenizer):
    from entropix_mlx import stream_generate

    options = {"max_tokens": 6, "seed": 1, "top_logprobs": 5}
    steps = list(stream_generate(tiny_model, byte_tokenizer, [1, 2], **options))
    tokens = [
        {"token": s.text, "logprob": s.logprob, "bytes": None}
        | {"top_logprobs": [{"token": a.text, "logprob": a.logprob} for a in s.top_logprobs]}
        for s in steps
    ]
    response = {"model": "m", "choices": [{"logprobs": {"content": tokens}}]}
    again = read_answer(written(tmp_path, chat(), response), 2)
    for one, other in zip(again.steps, steps, strict=True):
        assert one.entropy <= other.entropy + 1e-4
        assert one.margin == pytest.approx(other.margin, abs=1e-4)


@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=40), st.integers(1, 40), st.booleans())
def test_the_entropy_is_a_lower_bound(weights, count, ordered):
    p = np.sort(np.array(weights) / sum(weights))[::-1]
    known = p[:count] if ordered else p[-count:]
    assert least_entropy(known, ordered) <= -(p * np.log2(p)).sum() + 1e-9


@pytest.mark.parametrize(
    "content",
    ["", "{", "[", "[1]", "{}", '{"choices": 3}', '{"choices": [{"logprobs": {"content": 3}}]}',
     '{"choices": [{"logprobs": {"content": [{"token": "a", "logprob": "x"}]}}]}',
     '{"choices": [{"logprobs": {"content": [{"token": "a", "logprob": 1, "bytes": [999]}]}}]}',
     '{"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": []}}]}',
     '{"choices": [{"message": {}, "logprobs": null}]}', "[" * 5000, '{"response": null}',
     '{"choices": [], "usage": 3}'],
)  # fmt: skip
def test_something_else_is_reported(content, tmp_path):
    file = tmp_path / "answer.json"
    file.write_text(content)
    with pytest.raises(TraceError):
        read_answer(file)


def test_the_viewer_shows_it(tmp_path):
    from entropix_mlx.tui.viewer import ViewerApp

    trace = read_answer(written(tmp_path, chat(tops=1)))
    assert math.isnan(trace.steps[0].margin)

    async def show():
        async with ViewerApp.of_trace(trace).run_test(size=(120, 40)) as pilot:
            await pilot.press("right", "right", "enter")
            assert pilot.app.return_code in (0, None)

    asyncio.run(show())
