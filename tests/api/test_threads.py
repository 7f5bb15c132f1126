"""A generation that is begun on one thread and continued on another."""

from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest

from entropix_mlx import batch_generate, stream_generate
from entropix_mlx.models.base import LanguageModel
from tests.architectures import make
from tests.conftest import PROMPT, make_tiny_model, tokens

OPTIONS = {"max_tokens": 6, "seed": 1}


def on_a_thread(function, *arguments):
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments).result()


@pytest.mark.parametrize("kind", [None, "gemma3_text", "mamba2", "qwen3_next"])
def test_a_generator_may_be_continued_on_another_thread(kind, endless):
    model = LanguageModel(*make(kind)) if kind else make_tiny_model()
    mx.eval(model.inner.parameters())
    expected = tokens(stream_generate(model, endless, PROMPT, **OPTIONS))
    steps = stream_generate(model, endless, PROMPT, **OPTIONS)
    first = on_a_thread(next, steps)
    assert [first.token, *tokens(on_a_thread(list, steps))] == expected
    batch = batch_generate(model, endless, [PROMPT, PROMPT[:2]], **OPTIONS)
    on_a_thread(next, iter(batch))
    assert [answer.error for answer in on_a_thread(batch.finish)] == [None, None]
