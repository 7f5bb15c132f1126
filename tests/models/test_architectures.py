"""Rows of a batch against the row alone, and against mlx-lm's own loop, in one table."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step

from entropix_mlx.models import caches, llama
from entropix_mlx.models.base import LanguageModel
from tests.architectures import make

BATCHED = (
    *("llama", "qwen2", "qwen3", "gpt2", "gpt_neox", "phi3", "smollm3", "granite", "glm4"),
    *("mixtral", "olmoe", "qwen3_moe"),
    *("gemma3_text", "cohere2", "olmo3", "gpt_oss", "llama4_text", "iquestloopcoder"),
    *("deepseek_v3", "minicpm3"),
    *("qwen3_next", "qwen3_5", "lfm2", "falcon_h1", "nemotron_h", "recurrent_gemma", "plamo2"),
    *("mamba", "mamba2"),
)
"""Of every kind of attention, of cache and of expert."""
ROW_BY_ROW = ("gemma2", "gpt_bigcode")
"""mlx-lm's own classes fail with rows of several lengths."""
RECURRENT = (
    *("qwen3_next", "qwen3_5", "lfm2", "falcon_h1", "nemotron_h", "recurrent_gemma", "plamo2"),
    *("mamba", "mamba2"),
)
FIRST_TOKEN_ALONE = ("recurrent_gemma",)
"""A state of zeros, as a batch begins with, is not what the layers take for none."""
PORTED = ("llama", "qwen2", "qwen3")
LENGTHS = (3, 9, 21, 14)
"""Tokens of each prompt: shorter and longer than the sliding windows of 8."""
STEPS = 5


def model_of(kind: str) -> LanguageModel:
    inner, config = make(kind)
    if llama.ports(config):
        model_class, arguments = llama.classes(config)
        port = model_class(arguments.from_dict(config))
        port.load_weights(list(tree_flatten(inner.parameters())))
        inner = port
    model = LanguageModel(inner, config)
    model.warm_up()
    return model


def prompts() -> list[list[int]]:
    random = np.random.default_rng(1)
    return [random.integers(5, 200, size=length).tolist() for length in LENGTHS]


def prefilled(model: LanguageModel, tokens: list[int]) -> list[Any]:
    """Return the cache of a text whose last token is to be fed."""
    cache = model.make_cache()
    if len(tokens) > 1:
        model(mx.array([tokens[:-1]]), cache, measure=False)
    mx.eval(caches.arrays(cache))
    return cache


def entropies(scores: tuple[mx.array, ...], row: int) -> list[float]:
    """Return the mean entropy in bits of a row's heads in each layer."""
    bits = []
    for layer in scores:
        shares = np.array(mx.softmax(layer[row], axis=-1), np.float64)
        logs = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
        bits.append(-(shares * logs).sum(-1).mean())
    return bits


class Reading:
    """What a row alone computes, greedily: its tokens, and each one's logits and entropies."""

    def __init__(self, model: LanguageModel, prompt: list[int]) -> None:
        cache = prefilled(model, prompt)
        self.fed, self.logits, self.entropies = [prompt[-1]], [], []
        for _ in range(STEPS):
            logits, scores = model(mx.array([self.fed[-1:]]), cache, "all")
            self.logits.append(np.array(logits[0, -1]))
            self.entropies.append(entropies(scores, 0))
            self.fed.append(int(logits[0, -1].argmax()))


def check(model: LanguageModel, batch: list[Any], expected: list[tuple[Reading, int]]) -> None:
    """Feed each row its token of a step, and compare the row with the reading there."""
    tokens = mx.array([[reading.fed[step]] for reading, step in expected])
    logits, scores = model(tokens, batch, "all")
    for row, (reading, step) in enumerate(expected):
        np.testing.assert_allclose(np.array(logits[row, -1]), reading.logits[step], atol=1e-3)
        np.testing.assert_allclose(entropies(scores, row), reading.entropies[step], atol=1e-3)


@pytest.mark.parametrize("kind", BATCHED)
def test_rows_of_a_batch_equal_the_row_alone(kind):
    model = model_of(kind)
    assert model.can_batch
    readings = [Reading(model, prompt) for prompt in prompts()]
    rows = [prefilled(model, prompt) for prompt in prompts()]
    batch = caches.extend(caches.merge(rows[:2]), caches.merge(rows[2:3]))
    batch = caches.extend(batch, rows[3])
    for step in range(3):
        check(model, batch, [(reading, step) for reading in readings])
    short, long = readings[0], readings[2]
    # A row is taken out, and forked; the batch goes on without it.
    alone = caches.extract(batch, 2)
    check(model, caches.fork(alone, 3), [(long, 3)] * 3)
    check(model, alone, [(long, 3)])
    batch = caches.keep(batch, [3, 0, 0])
    check(model, batch, [(readings[3], 3), (short, 3), (short, 3)])
    # One of them is joined by a text of another length, and that by one without a cache yet.
    batch = caches.extend(caches.keep(batch, [1]), alone)
    check(model, batch, [(short, 4), (long, 4)])
    if kind not in FIRST_TOKEN_ALONE:
        first = Reading(model, [5])
        batch = caches.extend(caches.keep(batch, [1]), prefilled(model, [5]))
        check(model, caches.keep(batch, [1]), [(first, 0)])


@pytest.mark.parametrize("kind", BATCHED)
def test_a_token_is_taken_back_where_no_layer_is_recurrent(kind):
    model = model_of(kind)
    short, long = prompts()[0], prompts()[2]
    reading = Reading(model, short)
    batch = caches.merge([prefilled(model, short), prefilled(model, long)])
    model(mx.array([[short[-1]], [long[-1]]]), batch, measure=False)
    cache = caches.extract(batch, 0)
    assert caches.can_trim(cache) == (kind not in RECURRENT)
    if kind in RECURRENT:
        with pytest.raises(ValueError, match="token"):
            caches.trim(cache, 1)
    else:
        caches.trim(cache, 1)
        check(model, caches.extend(cache, prefilled(model, short)), [(reading, 0), (reading, 0)])


@pytest.mark.parametrize("kind", [*BATCHED, *ROW_BY_ROW])
def test_greedy_tokens_are_those_of_mlx_lms_loop(kind):
    model, prompt = model_of(kind), prompts()[2]
    theirs = generate_step(mx.array(prompt), make(kind)[0], max_tokens=STEPS)
    assert Reading(model, prompt).fed[1:] == [int(token) for token, _ in theirs]


@pytest.mark.parametrize("kind", ROW_BY_ROW)
def test_a_class_that_fails_with_rows_of_several_lengths_runs_row_by_row(kind):
    model = model_of(kind)
    assert not model.can_batch
    assert entropies(model(mx.array([[1, 2, 3]]), model.make_cache()).scores, 0)


@pytest.mark.parametrize("kind", PORTED)
def test_the_port_computes_the_family(kind):
    assert isinstance(model_of(kind).inner, llama.Model)


@pytest.mark.parametrize("kind", BATCHED)
def test_each_of_the_last_queries_is_measured_as_if_it_were_the_last(kind):
    model, tokens = model_of(kind), prompts()[1]
    _, together = model(mx.array([tokens]), model.make_cache(), queries=3)
    for back in range(3):
        part = tokens[: len(tokens) - back]
        _, alone = model(mx.array([part]), model.make_cache())
        measured = tuple(layer[:, 2 - back : 3 - back] for layer in together)
        np.testing.assert_allclose(entropies(measured, 0), entropies(alone, 0), atol=1e-3)


def test_without_attention_nothing_is_measured():
    model = model_of("mamba")
    assert model.attention_heads == ()
    assert model(mx.array([[1, 2]]), model.make_cache(), "all").scores == ()
