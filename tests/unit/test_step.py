"""A step's record: what goes into a trace comes out of it again."""

import json

import pytest

from entropix_mlx import stream_generate
from entropix_mlx.step import Step
from tests.answer.test_forks import always_branch


def test_a_record_holds_the_whole_step(tiny_model, byte_tokenizer):
    profile = always_branch(min_gap=3)
    steps = list(
        stream_generate(
            tiny_model,
            byte_tokenizer,
            [72, 105],
            max_tokens=30,
            seed=1,
            profile=profile,
            top_logprobs=2,
        )
    )
    assert any(step.fork for step in steps)
    for step in steps:
        line = json.dumps(step.to_dict())
        again = Step.from_dict(json.loads(line))
        assert json.dumps(again.to_dict()) == line
        assert again.entropy == pytest.approx(step.entropy, rel=1e-6)
        assert (again.fork is None) == (step.fork is None)
        if step.fork:
            assert again.fork.winner == step.fork.winner
            assert [r.tokens for r in again.fork.branches] == [r.tokens for r in step.fork.branches]
        assert (again.strategy, again.origin) == (step.strategy, step.origin)
