"""The demo model: equal to mlx-lm's, reproducible, and measured at every token."""

import mlx.core as mx
import mlx_lm
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from entropix_mlx import chat_prompt, load, stream_generate

pytestmark = pytest.mark.model

# Some tests leave the chat template out: reading it takes longer than all the rest.
QUESTIONS = ["Which number is larger, 9.9 or 9.11?", "Write a haiku about the sea."]


@pytest.fixture(scope="module")
def twin(demo_folder):
    return mlx_lm.load(str(demo_folder))


@pytest.fixture(scope="module")
def unpacked(demo_folder):
    """The demo model in float32, which a GPU does not make of the packed one by itself."""
    return load(demo_folder)


def test_logits_equal_mlx_lms(unpacked, twin):
    model, tokenizer = unpacked
    tokens = mx.array([tokenizer.encode(QUESTIONS[0])])
    assert mx.abs(model(tokens, model.make_cache()).logits - twin[0](tokens)).max().item() <= 1e-3


def test_greedy_text_equals_mlx_lms(unpacked, twin):
    model, tokenizer = unpacked
    prompt = tokenizer.encode(QUESTIONS[1])
    ours = list(stream_generate(model, tokenizer, prompt, max_tokens=16, sampler="greedy"))
    theirs = list(mlx_lm.stream_generate(*twin, prompt, max_tokens=16))
    assert [step.token for step in ours] == [response.token for response in theirs]
    assert "".join(step.text for step in ours) == "".join(r.text for r in theirs)


def test_the_template_and_the_tokenizer_equal_those_of_the_converted_folder(demo, twin):
    for text in [*QUESTIONS, "1234 don't\n\n\tünïcödé 😀 <|im_end|>"]:
        assert chat_prompt(demo[1], text) == chat_prompt(twin[1], text)
    assert demo[1].eos_token_ids == twin[1].eos_token_ids == {2}


# The vocabulary has no token for these bytes, so no text can hold a character made of them. The
# control characters are the whole of the loss for ordinary text: F1 and F2 begin unassigned planes.
LACKING = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}


@given(st.text().filter(lambda text: not LACKING & set(text.encode())))
@example("  two  spaces and 1234567890 ")
@example("👩‍👩‍👧‍👦 日本語 \r\n\t\x00 <|im_start|>user")
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_decoding_undoes_encoding(demo, text):
    _, tokenizer = demo
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_packed_weights_give_nearly_the_same_logits(demo, demo_file):
    packed, tokenizer = load(demo_file, dequantize=False)
    tokens = mx.array([tokenizer.encode("Hi")])
    found, expected = (model(tokens, model.make_cache()).logits for model in (packed, demo[0]))
    difference = mx.abs(found - expected).max().item()
    assert difference <= 2e-3
