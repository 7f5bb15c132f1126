"""Policies with a memory: what they remember is that of the text, however it came to be."""

import pytest

from entropix_mlx import stream_generate

PROMPT = list(b"The quick brown fox")
WITH_MEMORY = ["mirostat"]


@pytest.fixture
def tokenizer(byte_tokenizer):
    byte_tokenizer._eos_token_ids = set()  # so that a run has the length that is asked for
    yield byte_tokenizer
    byte_tokenizer._eos_token_ids = {257}


@pytest.fixture
def run(tiny_model, tokenizer):
    def run(max_tokens=40, **options):
        options.setdefault("seed", 1)
        return list(
            stream_generate(tiny_model, tokenizer, PROMPT, max_tokens=max_tokens, **options)
        )

    return run


@pytest.mark.parametrize("sampler", WITH_MEMORY)
@pytest.mark.parametrize("seed", range(3))
def test_pipelining_does_not_change_the_steps(run, sampler, seed):
    steps = run(sampler=sampler, seed=seed)
    assert steps == run(sampler=sampler, seed=seed, pipelined=False)
    assert len({step.token for step in steps}) > 5
