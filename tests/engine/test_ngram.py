"""N-gram speculation: what is proposed, and that it changes nothing of what is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx import Settings, stream_generate
from entropix_mlx.api.batch import batch_generate
from entropix_mlx.engine.speculation.ngram import LONGEST, SHORTEST, NgramProposer
from entropix_mlx.engine.speculation.proposer import Lengths
from entropix_mlx.errors import SettingsError
from entropix_mlx.models.device import BATCHED, CAREFUL
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step
from entropix_mlx.summary import Summary
from tests.answer.test_forks import always_branch
from tests.conftest import make_tiny_model

texts = st.lists(st.integers(0, 3), max_size=40)


def found_by_search(tokens, count):
    """Return what followed the longest end of a text that stands in it before, found by search."""
    for length in range(LONGEST, SHORTEST - 1, -1):
        last = tokens[len(tokens) - length :]
        for begin in range(len(tokens) - length - 1, -1, -1):
            if len(last) == length and tokens[begin : begin + length] == last:
                found = list(tokens)
                for number in range(count):
                    found.append(found[begin + length + number])
                return found[len(tokens) :]
    return []


@given(texts, st.integers(1, 9))
def test_a_proposal_is_what_followed_the_last_tokens_before(tokens, count):
    proposer, text = NgramProposer(Lengths(count)), []
    proposed = proposer.propose(tokens)
    assert len(proposed) in (0, count)
    assert proposed == NgramProposer(Lengths(count + 1)).propose(tokens)[:count]
    assert proposed[1:] == NgramProposer(Lengths(count - 1)).propose(tokens, ahead=1)
    assert bool(proposed) == bool(found_by_search(tokens, 1))
    # The first time that anything is repeated, there is one place where it stood.
    for token in tokens:
        text.append(token)
        if expected := found_by_search(text, count):
            assert NgramProposer(Lengths(count)).propose(text) == expected
            break


COPIED = list(range(40))


@pytest.mark.parametrize(
    "changed",
    [[*range(20), 99, *range(21, 26)], [*range(20), *range(23, 26)], [*range(20), 98, 99, 20, 21]],
    ids=["replaced", "left out", "put in"],
)
def test_a_copy_is_found_again_behind_a_change(changed):
    proposer = NgramProposer(Lengths(4))
    proposer.propose([*COPIED, 50])
    text = [*COPIED, 50]
    proposals = []
    for token in changed:
        text.append(token)
        proposals.append(proposer.propose(text))
    assert proposals[19] == [20, 21, 22, 23]
    back = next(at for at in range(20, len(changed)) if changed[at] in COPIED)
    following = changed[back] + 1
    assert proposals[back] == list(range(following, following + 4)), "the first token tells"
    if changed[20] == 99:
        assert proposals[20] == [21, 22, 23, 24], "one token may have been replaced by another"


def test_a_place_that_was_lost_is_forgotten():
    proposer, text = NgramProposer(Lengths(4)), [*COPIED, 50, *range(10), *range(60, 70)]
    proposer.propose(text[:41])
    proposals = [proposer.propose(text[:length]) for length in range(42, len(text) + 1)]
    assert proposals[10], "something may have been replaced"
    assert proposals[-1] == []


@pytest.mark.parametrize("costs", [BATCHED, CAREFUL])
def test_proposals_grow_while_they_hold_and_end_where_they_do_not(costs):
    proposer, text = NgramProposer(Lengths(costs=costs)), [1, 2, 3, 4, 5, 6, 7] * 2
    lengths = [len(proposer.propose(text))]
    for token in [1, 2, 3, 4, 5, 6, 7] * 4:
        text.append(token)
        lengths.append(len(proposer.propose(text)))
    assert lengths[-1] == max(lengths)
    assert set(lengths) <= {0, *(length for length, _ in costs)}
    assert lengths[-1] == costs[-1][0]
    among_others = len(proposer.propose(text, alone=False))
    assert (among_others < lengths[-1]) is (costs is BATCHED)
    for number in range(40):
        text += [1, 2, 100 + number]
        proposer.propose(text)
    text += [1, 2]
    assert proposer.propose(text) == [], "after two tokens something else came each time"


@pytest.mark.parametrize(
    ("rates", "ahead", "best"), [([0.9, 0.1], 0, 1), ([0.9, 0.1], 1, 0), ([0.9, 0.9], 1, 1)]
)
def test_a_proposal_must_pay_behind_what_is_drawn_already(rates, ahead, best):
    assert Lengths(costs=((1, 1.5),)).best(rates, ahead) == best


@pytest.fixture(scope="module")
def cyclic():
    """A model whose next token depends on the last one alone, so that it soon repeats itself."""
    model = make_tiny_model(scale=1.0)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight *= 0
    return model


PROMPT = list(b"abcabcabc and again: abcabc")
LOST = {"low_entropy": -1, "think_min_entropy": -1, "think_max_varentropy": 1e9}
THINKING = Profile.load().replace({"thresholds": LOST, "think": {"place": "word", "watch": 3}})


def speculated(model, tokenizer, length, **options):
    options = {"max_tokens": 36, "seed": 1} | options
    return list(stream_generate(model, tokenizer, PROMPT, speculation=length, **options))


def same(one, other):
    """Tell whether two answers are the same but for what rounding does to their numbers."""
    words = [
        [
            (s.token, s.text, s.strategy, s.origin, s.rolled_back, s.finish_reason, bool(s.fork))
            for s in steps
        ]
        for steps in (one, other)
    ]
    numbers = [[[*s.metrics, s.logprob] for s in steps] for steps in (one, other)]
    return words[0] == words[1] and all(
        mine == pytest.approx(theirs, rel=1e-3, abs=1e-3)
        for mine, theirs in zip(*numbers, strict=True)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": "greedy", "repetition_penalty": 1.01},
        {"sampler": "min_p", "temperature": 0.3},
        {"sampler": "mirostat"},
        pytest.param({"sampler": "dslider", "max_tokens": 30}, marks=pytest.mark.slow),
        {"sampler": "entropix", "attention_layers": "all", "top_logprobs": 2},
        {"profile": always_branch(depth=5)},
        {"profile": THINKING},
    ],
    ids=["penalty", "min_p", "mirostat", "dslider", "all layers", "forks", "thinking"],
)
def test_proposals_change_no_step(cyclic, endless, options):
    without = speculated(cyclic, endless, "off", **options)
    assert same(speculated(cyclic, endless, 3, **options), without)


def test_proposals_save_passes(cyclic, endless):
    without = speculated(cyclic, endless, "off", max_tokens=80, sampler="greedy")
    for length, least in ((4, 2.0), ("auto", 2.0)):
        steps = speculated(cyclic, endless, length, max_tokens=80, sampler="greedy")
        assert same(steps, without)
        summary = Summary.of(steps)
        assert summary.tokens_per_pass >= least
        assert summary.proposed >= summary.accepted > 0
    assert summary.to_dict()["speculation"]["accepted"] == summary.accepted
    assert Step.from_dict(steps[-1].to_dict()).accepted == steps[-1].accepted


@pytest.mark.parametrize("length", [1, 20, 33])
def test_a_limit_may_fall_into_a_proposal(cyclic, endless, length):
    whole = speculated(cyclic, endless, 8, sampler="greedy")
    short = speculated(cyclic, endless, 8, sampler="greedy", max_tokens=length)
    assert [s.token for s in short] == [s.token for s in whole[:length]]
    assert not short[-1].proposed, "nothing is proposed behind the last token"


def test_what_is_left_early_keeps_the_cache_right(cyclic, endless):
    whole = speculated(cyclic, endless, "off", sampler="greedy", max_tokens=40)
    for stop in (20, 25):
        cache = cyclic.make_cache()
        options = {"sampler": "greedy", "max_tokens": 40, "speculation": 8}
        steps = stream_generate(cyclic, endless, PROMPT, prompt_cache=cache, **options)
        taken = [next(steps).token for _ in range(stop)]
        steps.close()
        assert {layer.offset for layer in cache} == {len(PROMPT) + stop - 1}
        rest = stream_generate(cyclic, endless, taken[-1:], prompt_cache=cache, **options)
        assert [next(rest).token for _ in range(9)] == [s.token for s in whole[stop : stop + 9]]


def test_a_stop_string_may_fall_into_a_proposal(cyclic, endless):
    whole = speculated(cyclic, endless, "off", sampler="greedy")
    stop = "".join(step.text for step in whole[30:33])
    for length in ("off", 8):
        steps = speculated(cyclic, endless, length, sampler="greedy", stop=(stop,))
        assert steps[-1].finish_reason == "stop"
        assert stop not in "".join(step.text for step in steps)


@pytest.mark.parametrize("shared", [False, True])
def test_each_row_of_a_batch_has_its_own_proposals(cyclic, endless, shared):
    prompts = [PROMPT] * 3 if shared else [PROMPT, list(b"xyxyxy"), list(b"What?")]
    settings = [Settings(28, name, seed=2) for name in ("greedy", "mirostat", "entropix")]
    found = []
    for length in ("off", 5):
        batch = batch_generate(cyclic, endless, prompts, settings, speculation=length, steady=True)
        batch.finish()
        found.append(batch.answers)
        accepted = sum(Summary.of(answer.steps).accepted for answer in batch.answers)
        assert (accepted > 9) is (length == 5)
    for one, other in zip(*found, strict=True):
        assert one.error is None
        assert same(one.steps, other.steps)


@pytest.mark.parametrize("value", ["on", 0, 17, 2.5, None])
def test_what_speculation_cannot_be_is_refused(value):
    with pytest.raises(SettingsError, match="speculation"):
        Settings(speculation=value)
