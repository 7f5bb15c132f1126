"""The samplers inside mlx-lm's own loops."""

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.generate import BatchGenerator

from entropix_mlx.errors import SamplerError
from entropix_mlx.samplers.processor import sampler
from tests import architectures
from tests.conftest import PROMPT


@pytest.fixture(scope="module")
def theirs():
    mx.disable_compile()
    yield architectures.make("llama")[0]
    mx.enable_compile()


def run(model, tokenizer, **options):
    responses = mlx_lm.stream_generate(model, tokenizer, PROMPT, max_tokens=20, **options)
    return [response.token for response in responses]


def test_greedy_is_mlx_lms_greedy(theirs, byte_tokenizer):
    expected = run(theirs, byte_tokenizer)
    assert run(theirs, byte_tokenizer, sampler=sampler("greedy")) == expected


def test_a_seed_repeats(theirs, byte_tokenizer):
    first, again, other = (
        run(theirs, byte_tokenizer, sampler=sampler(seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize("name", ["min_p", "xtc"])
def test_other_samplers_draw_too(theirs, byte_tokenizer, name):
    assert len(run(theirs, byte_tokenizer, sampler=sampler(name, seed=1))) == 20


def test_a_batch_generator_takes_it(theirs, byte_tokenizer):
    generator = BatchGenerator(theirs, sampler=sampler(seed=1), max_tokens=6)
    numbers = generator.insert([PROMPT, PROMPT[:5]], max_tokens=[6, 6])
    counts = dict.fromkeys(numbers, 0)
    for _ in range(40):
        step = generator.next()
        responses = step[-1] if isinstance(step, tuple) else step
        for response in responses:
            counts[response.uid] += 1
        if all(count >= 6 for count in counts.values()):
            break
    assert set(counts.values()) == {6}


def test_what_a_sampler_does_not_take_is_said():
    with pytest.raises(SamplerError):
        sampler("greedy", temperature=0.5)
