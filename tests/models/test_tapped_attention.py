"""Any model of mlx-lm against mlx-lm itself, and its attention against float64 NumPy."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from entropix_mlx import Session, Settings, stream_generate
from entropix_mlx.engine.speculation import speculation
from entropix_mlx.models.tapped.model import TappedModel
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Origin
from entropix_mlx.summary import Summary
from tests.architectures import ARCHITECTURES, make
from tests.engine.test_ngram import same

pytestmark = pytest.mark.usefixtures("uncompiled", "endless")

PROMPT = list(b"The quick brown fox")  # longer than the sliding windows
TOKENS = 12
UNMEASURED = ("mamba", "mamba2")
OWN_SCORES = ("gemma2",)
"""Attention that does not go through MLX's kernel."""


TAKES_BACK = (
    *("llama", "gemma3_text", "olmo3", "gpt_oss", "llama4_text", "iquestloopcoder", "gemma2"),
    *("deepseek_v3", "qwen3_next", "lfm2", "falcon_h1", "recurrent_gemma", "plamo2", "mamba"),
)
"""One of every kind of cache."""


def busy_profile(model, tokenizer) -> Profile:
    """Return a profile by which half of the positions think where they may, and the others fork.

    The median of an even number of positions is between two of them, so rounding decides nothing.
    """
    steps = stream_generate(model, tokenizer, PROMPT, sampler="min_p", seed=0, max_tokens=8)
    middle = float(np.median([step.varentropy for step in steps]))
    return Profile.load().replace(
        {
            "thresholds": {
                "low_entropy": -1,
                "think_min_entropy": -1,
                "think_max_varentropy": middle,
                "branch_max_entropy": 1e9,
                "branch_min_varentropy": -1,
                "branch_max_margin": 2,
            },
            "think": {"min_gap": 4, "text": " So,", "watch": 3, "loop_length": 0, "place": "word"},
            "branch": {"max_branches": 8, "depth": 4, "width": 3, "min_gap": 4, "margin": 0.0},
        }
    )


@contextmanager
def kernel_calls():
    """Note the arguments of every call of MLX's kernel that has a single query."""
    original, calls = mx.fast.scaled_dot_product_attention, []

    def noting(q, k, v, *, scale, mask=None, sinks=None):
        if q.shape[2] == 1:
            # A cache may hand out its own array, and write to it in the next pass.
            calls.append((q, mx.array(k), scale, mask, sinks))
        return original(q, k, v, scale=scale, mask=mask, sinks=sinks)

    mx.fast.scaled_dot_product_attention = noting
    try:
        yield calls
    finally:
        mx.fast.scaled_dot_product_attention = original


def exact_entropy(q, k, scale, mask, _sinks) -> float:
    """Return the mean entropy in bits of the heads' attention to the keys, in float64."""
    q, k = np.array(q, np.float64)[0], np.array(k, np.float64)[0]
    k = np.repeat(k, q.shape[0] // k.shape[0], axis=0)
    scores = scale * (q @ k.swapaxes(-1, -2))
    if isinstance(mask, mx.array):
        if mask.dtype == mx.bool_:
            scores = np.where(np.array(mask), scores, -np.inf)
        else:
            scores = scores + np.array(mask.astype(mx.float32), np.float64)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    bits = np.log2(weights, where=weights > 0, out=np.zeros_like(weights))
    return float(-(weights * bits).sum(axis=-1).mean())


def greedy_tokens(model, count):
    """Generate as mlx-lm does, without anything of this package."""
    cache = make_prompt_cache(model)
    model(mx.array([PROMPT[:-1]]), cache=cache)
    tokens = [PROMPT[-1]]
    for _ in range(count):
        logits = model(mx.array([[tokens[-1]]]), cache=cache)[:, -1]
        tokens.append(logits.argmax(axis=-1).item())
    return tokens[1:]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_greedy_tokens_are_mlx_lms_and_the_entropy_is_exact(kind, word_tokenizer):
    tapped = TappedModel(*make(kind))
    with kernel_calls() as calls:
        steps = list(
            stream_generate(
                tapped,
                word_tokenizer,
                PROMPT,
                sampler="greedy",
                max_tokens=TOKENS,
                pipelined=False,
                speculation="off",
            )
        )
    assert [step.token for step in steps] == greedy_tokens(tapped.inner, TOKENS)
    measured = [step.attention_entropy for step in steps]
    if kind in UNMEASURED:
        assert all(math.isnan(value) for step in steps for value in step.metrics[3:])
        return
    assert all(math.isfinite(value) for step in steps for value in step.metrics)
    if kind not in OWN_SCORES:
        last = calls[len(tapped.attention_heads) - 1 :: len(tapped.attention_heads)]
        expected = [exact_entropy(*call) for call in last[:TOKENS]]
        np.testing.assert_allclose(measured, expected, atol=1e-3)


@pytest.mark.parametrize("kind", TAKES_BACK)
def test_pipelining_changes_nothing_where_text_is_inserted_and_forks_are_followed(
    kind, word_tokenizer
):
    tapped = TappedModel(*make(kind))
    options = {"profile": busy_profile(tapped, word_tokenizer), "seed": 3, "max_tokens": 24}
    options["speculation"] = "off"  # by default a GPU's: passes of other lengths round otherwise

    def run(pipelined):
        return list(stream_generate(tapped, word_tokenizer, PROMPT, pipelined=pipelined, **options))

    steps = run(True)
    assert steps == run(False)
    assert any(step.fork for step in steps)
    assert any(step.origin is Origin.INSERTED for step in steps)
    # What was committed is what a plain run over the same text would measure.
    text = PROMPT + [step.token for step in steps]
    logits = tapped.inner(mx.array([text[:-1]]))[0, len(PROMPT) - 1 :]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    expected = [logprobs[n, step.token].item() for n, step in enumerate(steps)]
    np.testing.assert_allclose([step.logprob for step in steps], expected, atol=2e-3)


class Knows:
    """Guesses the answer, with one token in three positions' guesses wrong."""

    needs_last_token = False

    def __init__(self, text: list[int]) -> None:
        self._text = text

    def propose(self, tokens, ahead=0, alone=True):
        begin = len(tokens) + ahead
        guess = self._text[begin : begin + 1 + begin % 5]
        return [*guess[:2], *((token + (begin % 3 == 0)) % 256 for token in guess[2:])]

    def close(self):
        pass


CAN_GUESS = [kind for kind in TAKES_BACK if TappedModel(*make(kind)).takes_blocks]


@pytest.mark.parametrize("kind", CAN_GUESS)
def test_guesses_change_no_step(kind, word_tokenizer, monkeypatch):
    """Short prompts are within the sliding windows at first, and leave them in a guess."""
    tapped = TappedModel(*make(kind))
    busy = {"profile": busy_profile(tapped, word_tokenizer), "seed": 3}
    for prompt, options in (
        (PROMPT, busy),
        (PROMPT[:4], busy),
        (PROMPT[:5], {"sampler": "mirostat", "attention_layers": "all", "seed": 3}),
    ):
        found = stream_generate(
            tapped, word_tokenizer, prompt, max_tokens=24, speculation="off", **options
        )
        without = list(found)
        text = [*prompt, *(step.token for step in without)]
        monkeypatch.setattr(speculation, "_ngram", lambda *_, known=text: Knows(known))
        guessed = list(stream_generate(tapped, word_tokenizer, prompt, max_tokens=24, **options))
        monkeypatch.undo()
        assert Summary.of(guessed).accepted > 0
        assert same(guessed, without)


def test_where_a_cache_cannot_be_restored_nothing_is_guessed():
    assert set(TAKES_BACK) - set(CAN_GUESS) == {
        *("qwen3_next", "lfm2", "falcon_h1", "recurrent_gemma", "plamo2", "mamba")
    }


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next", "mamba"])
def test_what_a_session_does_again_equals_a_fresh_run(kind, word_tokenizer):
    model = TappedModel(*make(kind))
    settings = Settings(profile=busy_profile(model, word_tokenizer), seed=5, max_tokens=12)
    session = Session(model, word_tokenizer, settings)
    first = [step.token for step in session.send("Hello?")]
    again = [step.token for step in session.regenerate()]
    fresh = Session(model, word_tokenizer, replace(settings, seed=6))
    assert [step.token for step in fresh.send("Hello?")] == again
    session.select(0)
    forked = [step.token for step in session.fork(7, 65)]
    whole = Session(model, word_tokenizer, settings)
    assert [step.token for step in whole.send("Hello?")] == first
    assert [step.token for step in whole.fork(7, 65)] == forked
    assert forked[0] == 65
    edited = [step.token for step in session.send("Hallo?", 0)]
    other = Session(model, word_tokenizer, settings)
    assert [step.token for step in other.send("Hallo?")] == edited
