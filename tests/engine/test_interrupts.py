"""What an interrupt, a cancel or a callback that fails leaves behind."""

import threading

import mlx.core as mx
import pytest

from entropix_mlx import batch_generate, stream_generate
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.engine.cached_text import CachedText
from entropix_mlx.engine.forward import Engine
from entropix_mlx.models.llama.model import Block
from tests.answer.test_forks import always_branch
from tests.conftest import tokens

PROMPT = list(b"The quick brown fox jumps")


@pytest.fixture
def interrupted(monkeypatch):
    """Let the second layer of the next forward pass be interrupted, once."""

    def arm():
        calls = []
        original = Block.__call__

        def call(self, *arguments, **options):
            calls.append(self)
            if len(calls) == 2:
                monkeypatch.setattr(Block, "__call__", original)
                raise KeyboardInterrupt
            return original(self, *arguments, **options)

        monkeypatch.setattr(Block, "__call__", call)

    return arm


def test_a_prefill_that_was_interrupted_leaves_a_cache_that_can_be_used(
    tiny_model, byte_tokenizer, interrupted
):
    cache = tiny_model.make_cache()
    tiny_model(mx.array([PROMPT[:3]]), cache)
    expected = tokens(stream_generate(tiny_model, byte_tokenizer, PROMPT, max_tokens=12, seed=1))
    options = {"max_tokens": 12, "seed": 1, "prompt_cache": cache}
    interrupted()
    with pytest.raises(KeyboardInterrupt):
        list(stream_generate(tiny_model, byte_tokenizer, PROMPT[3:], **options))
    assert {layer.offset for layer in cache} == {3}
    again = tokens(stream_generate(tiny_model, byte_tokenizer, PROMPT[3:], **options))
    assert again == expected
    assert {layer.offset for layer in cache} == {len(PROMPT) + len(again) - 1}


def test_an_interrupted_pass_leaves_what_all_layers_hold(tiny_model, interrupted):
    text = CachedText.empty(tiny_model)
    Engine(tiny_model).prefill(text, PROMPT[:5])
    text.confirm(PROMPT[5:6])  # as a slot does before the pass
    interrupted()
    with pytest.raises(KeyboardInterrupt):
        tiny_model(mx.array([PROMPT[5:6]]), text.layers)
    text.take_back()
    assert text.ids == PROMPT[:5]
    assert {layer.offset for layer in text.layers} == {5}


def test_a_cache_whose_layers_differ_is_cut_to_the_shortest(
    tiny_model, byte_tokenizer, interrupted
):
    cache = tiny_model.make_cache()
    tiny_model(mx.array([PROMPT[:3]]), cache)
    interrupted()
    with pytest.raises(KeyboardInterrupt):
        tiny_model(mx.array([PROMPT[3:6]]), cache)
    assert len({layer.offset for layer in cache}) == 2
    options = {"max_tokens": 9, "seed": 1}
    expected = tokens(stream_generate(tiny_model, byte_tokenizer, PROMPT, **options))
    steps = stream_generate(tiny_model, byte_tokenizer, PROMPT[3:], prompt_cache=cache, **options)
    assert tokens(steps) == expected


def test_a_loop_over_a_batch_that_was_left_can_be_taken_up_again(tiny_model, byte_tokenizer):
    prompts = [PROMPT, PROMPT[:9], PROMPT]
    whole = batch_generate(tiny_model, byte_tokenizer, prompts, max_tokens=9, seed=4).finish()
    batch = batch_generate(tiny_model, byte_tokenizer, prompts, max_tokens=9, seed=4, batch=2)
    for number, _ in enumerate(batch):
        if number == 4:
            break
    found = batch.finish()
    assert [tokens(answer.steps) for answer in found] == [tokens(a.steps) for a in whole]
    assert all(answer.error is None for answer in found)


def test_answers_of_a_batch_that_was_closed_say_so(tiny_model, byte_tokenizer):
    batch = batch_generate(tiny_model, byte_tokenizer, [PROMPT] * 3, max_tokens=9, batch=1, seed=1)
    for _ in range(12):
        next(iter(batch))
    batch.close()
    assert [answer.error is None for answer in batch.answers] == [True, False, False]
    assert len(batch.answers[1].steps) == 3


def test_a_cancel_ends_an_answer_that_waits_for_a_person(tiny_model, byte_tokenizer):
    cancel, asked, released = threading.Event(), threading.Event(), threading.Event()

    def choose(fork):
        asked.set()
        cancel.set()
        released.wait(20)
        return 0

    hooks = Hooks(cancel=cancel, choose=choose)
    profile = always_branch(ask_margin=1e6)
    (answer,) = batch_generate(
        tiny_model, byte_tokenizer, [PROMPT], max_tokens=9, seed=1, profile=profile, hooks=hooks
    ).finish()
    assert asked.is_set()
    assert not released.is_set()
    assert answer.error is None
    released.set()
