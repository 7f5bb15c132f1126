"""What a GPU does otherwise than the CPU backend: compiled positions, weights in half precision or
packed, prompts in long chunks.

Where there is a GPU, its measurements are compared with the CPU's. Elsewhere `on_cpu` says that
there is one, and the CPU backend does what it would do.
"""

import shutil
from contextlib import contextmanager
from threading import Event

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from entropix_mlx import generate, load, score, stream_generate
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.models import device
from tests.answer.test_forks import always_branch
from tests.conftest import PROMPT, make_tiny_model

pytestmark = pytest.mark.as_gpu

TEXT = list(b" jumps over the lazy dog")
CLOSE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1, "4 bits": 1e-3}


@pytest.fixture(autouse=True)
def _as_gpu(monkeypatch):
    if mx.default_device() == mx.cpu and not shutil.which("g++"):
        pytest.skip("compiling for the CPU needs g++")
    monkeypatch.setattr(device, "on_cpu", lambda: False)


@contextmanager
def on_the_cpu(monkeypatch):
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    with monkeypatch.context() as context:
        context.setattr(device, "on_cpu", lambda: True)
        context.delenv("ENTROPIX_COMPILE", raising=False)
        try:
            yield
        finally:
            mx.set_default_device(before)


def measured(steps):
    return np.array([[*step.metrics, step.logprob] for step in steps], dtype=float)


def model_of(kind):
    model = make_tiny_model(scale=0.2, max_position_embeddings=4096)
    if kind == "4 bits":
        nn.quantize(
            model.inner, group_size=32, bits=4, class_predicate=lambda _, layer: packs(layer)
        )
    else:
        model.inner.set_dtype(getattr(mx, kind))
    mx.eval(model.inner.parameters())
    return model


def packs(layer):
    return isinstance(layer, nn.Linear) and layer.weight.shape[-1] % 32 == 0


KINDS = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16), "4 bits"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_measured_as_on_the_cpu(kind, byte_tokenizer, monkeypatch):
    model = model_of(kind)
    found = list(score(model, byte_tokenizer, TEXT, seed=3, after=PROMPT[:1]))
    with on_the_cpu(monkeypatch):
        expected = list(score(model, byte_tokenizer, TEXT, seed=3, after=PROMPT[:1]))
    np.testing.assert_allclose(
        measured(found), measured(expected), rtol=CLOSE[kind], atol=CLOSE[kind]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_forks_follow_branches(kind, endless):
    profile = always_branch(width=3, depth=4)
    options = {"max_tokens": 12, "profile": profile}
    steps = list(stream_generate(model_of(kind), endless, PROMPT, seed=2, **options))
    assert any(step.fork for step in steps)
    assert np.isfinite(measured(steps)).all()


def test_a_prompt_is_computed_in_long_chunks_between_which_it_can_be_cancelled(byte_tokenizer):
    model, cancel, seen = model_of("float32"), Event(), []

    def on_prefill(done, total):
        seen.append(done)
        if done:
            cancel.set()

    options = {"max_tokens": 5, "hooks": Hooks(cancel, on_prefill)}
    assert list(stream_generate(model, byte_tokenizer, PROMPT * 120, **options)) == []
    assert seen == [0, 2048]


@pytest.mark.model
@pytest.mark.slow
def test_the_demo_model_stays_packed_and_answers(demo_file):
    model, tokenizer = load(demo_file)
    assert "4 bits" in model.precision
    begun = "The capital of France is"
    assert "Paris" in generate(model, tokenizer, begun, sampler="greedy", max_tokens=2)
