"""Metal's wired memory, faked: the limit is raised while anything runs, and then put back."""

import itertools

import mlx.core as mx
import pytest

from entropix_mlx import batch_generate, stream_generate

PROMPT = list(b"The quick brown fox")
BEFORE, RECOMMENDED = 7, 1000


@pytest.fixture
def limit(monkeypatch):
    """A device with wired memory; the list holds every limit in turn, the last one in force."""
    history = [BEFORE]

    def set_limit(value):
        history.append(value)
        return history[-2]

    device = {"max_recommended_working_set_size": RECOMMENDED}
    monkeypatch.setattr(mx, "device_info", lambda: device)
    monkeypatch.setattr(mx, "set_wired_limit", set_limit)
    return history


def test_one_generator_raises_it_and_puts_it_back(limit, tiny_model, byte_tokenizer):
    list(stream_generate(tiny_model, byte_tokenizer, PROMPT, max_tokens=3))
    assert limit == [BEFORE, RECOMMENDED, BEFORE]


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_two_live_generators_are_counted(limit, tiny_model, byte_tokenizer, first_to_end):
    both = [
        stream_generate(tiny_model, byte_tokenizer, PROMPT, max_tokens=9, seed=1) for _ in range(2)
    ]
    for step in itertools.islice(zip(*both, strict=True), 3):
        assert step
    both[first_to_end].close()
    assert limit[-1] == RECOMMENDED
    both[1 - first_to_end].close()
    assert limit == [BEFORE, RECOMMENDED, BEFORE]


def test_a_batch_counts_too(limit, tiny_model, byte_tokenizer):
    stream = stream_generate(tiny_model, byte_tokenizer, PROMPT, max_tokens=9, seed=1)
    next(stream)
    batch_generate(tiny_model, byte_tokenizer, [PROMPT, PROMPT], max_tokens=3).finish()
    assert limit[-1] == RECOMMENDED
    stream.close()
    assert limit[-1] == BEFORE
