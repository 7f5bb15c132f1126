"""Prompts that are dealt to other ranks, which are played here one after the other."""

from __future__ import annotations

from queue import Queue

import pytest

from entropix_mlx import Settings, batch_generate
from entropix_mlx.api.data_parallel import (
    Dealt,
    Workers,
    settings_of,
    settings_record,
    work,
)
from entropix_mlx.profiles.profile import Profile

PROMPTS = [list(b"one"), list(b"another"), list(b"a third one"), list(b"four"), list(b"5"), [256]]
SETTINGS = [Settings(seed=number, max_tokens=5, sampler="min_p") for number in range(5)]
WRONG = [Settings(seed=5, max_tokens=5, changes={"think": {"text": [999]}})]


def play(model, tokenizer, left=99):
    """Return workers that answer what they are sent; rank 2 is lost after some answers."""
    results: Queue = Queue()
    lost = []

    def send(rank, order):
        answered = []
        work(model, tokenizer, [order], answered.append)
        if rank == 2 and len(answered) > left:
            results.put((rank, answered[0]))
            results.put((rank, None))
            lost.append(len(answered) - 1)
        else:
            for one in answered:
                results.put((rank, one))

    return Workers([1, 2], send, results), lost


@pytest.mark.parametrize("left", [99, 1])
def test_dealt_answers_are_those_of_one_rank_in_order(tiny_model, byte_tokenizer, left):
    alone = batch_generate(tiny_model, byte_tokenizer, PROMPTS, SETTINGS + WRONG, batch=2).finish()
    workers, lost = play(tiny_model, byte_tokenizer, left)
    dealt = Dealt(tiny_model, byte_tokenizer, PROMPTS, SETTINGS + WRONG, workers, 2)
    order = [index for index, _ in dealt]
    assert order == sorted(order)
    assert (workers.ranks, bool(lost)) == (([1], True) if left == 1 else ([1, 2], False))
    for one, other in zip(alone, dealt.answers, strict=True):
        assert [step.token for step in one.steps] == [step.token for step in other.steps]
        assert (one.seed, one.prompt_tokens) == (other.seed, other.prompt_tokens)
        assert str(one.error) == str(other.error)
    assert dealt.answers[-1].error is not None


def test_settings_pass_the_line_unchanged(tiny_model):
    given = Settings(
        seed=4,
        stop="###",
        logit_bias={3: 1.5},
        profile=Profile.load().replace({"thresholds": {"low_entropy": float("-inf")}}),
        speculation=3,
    )
    assert settings_of(settings_record(given)) == given
