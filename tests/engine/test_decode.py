"""The decode loop on a tiny model: insertions, limits, the cache, cancelling, synchronisation."""

import itertools
import threading

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import stream_generate
from entropix_mlx.engine.forward import Engine
from entropix_mlx.errors import (
    NonFiniteLogitsError,
    ProfileError,
)
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import DropReason, Origin
from tests.answer.test_forks import always_branch
from tests.conftest import PROMPT, make_tiny_model, tokens

THINK = {"text": [" Wait,", " Hm.", " So:"], "place": "word", "watch": 4, "loop_length": 0}
ALWAYS_THINK = Profile.load().replace(
    {
        "thresholds": {"low_entropy": -1, "think_min_entropy": -1, "think_max_varentropy": 1e9},
        "think": THINK,
    }
)
NEVER_THINK = ALWAYS_THINK.replace({"think": {"max_insertions": 0}})
FORKING = always_branch(min_gap=3).replace({"thresholds": {"think_max_varentropy": 4.0}})


@pytest.fixture
def run(tiny_model, endless):
    def run(max_tokens=40, **options):
        options.setdefault("seed", 1)
        return list(stream_generate(tiny_model, endless, PROMPT, max_tokens=max_tokens, **options))

    return run


def inserted(steps):
    return [step.index for step in steps if step.origin is Origin.INSERTED]


@pytest.mark.parametrize("sampler", ["entropix", "cntp"])
@pytest.mark.parametrize("profile", [Profile.load(), ALWAYS_THINK, FORKING])
def test_pipelining_does_not_change_the_steps(run, profile, sampler):
    length = 24 if sampler == "entropix" else 9  # where forks are many and long
    options = {"profile": profile, "sampler": sampler, "top_logprobs": 2}
    assert run(length, **options) == run(length, **options, pipelined=False)


def test_a_shorter_answer_is_the_beginning_of_a_longer_one(run):
    profile = always_branch(depth=9)
    whole = run(24, profile=profile)
    assert any(step.fork for step in whole)
    for length in (1, 7, 15):
        short = run(length, profile=profile)
        assert [(s.token, s.fork) for s in short] == [(s.token, s.fork) for s in whole[:length]]


def test_a_seed_repeats_whatever_the_global_random_state_is_and_another_differs(run):
    mx.random.seed(5)
    before = np.array(mx.random.state[0])
    first = run()
    np.testing.assert_array_equal(np.array(mx.random.state[0]), before)
    mx.random.seed(6)
    assert run() == first
    assert tokens(run(seed=2)) != tokens(first)


@pytest.mark.parametrize(("pipelined", "branches"), [(True, 0), (True, 3), (False, 3)])
def test_a_thought_that_gains_nothing_is_dropped(run, endless, monkeypatch, pipelined, branches):
    """What was followed in its place becomes the text, up to where an intervention is due."""
    passes = []
    queue = Engine.queue
    monkeypatch.setattr(Engine, "queue", lambda *about: passes.append(1) or queue(*about))
    forks = {"trigger": "chance", "trigger_at": 0.2, "width": 2, "depth": 3, "min_gap": 1}
    never = NEVER_THINK.replace({"branch": forks | {"max_branches": branches}})
    picky = never.replace({"think": {"max_insertions": 3, "least_gain": 99.0}})
    steps = run(60, profile=picky, seed=2, pipelined=pipelined)
    with_thoughts = len(passes)
    passes.clear()
    plain = run(60, profile=never, seed=2, pipelined=pipelined)
    facts = [[(s.token, s.origin, bool(s.fork)) for s in found] for found in (steps, plain)]
    assert facts[0] == facts[1]
    assert sum(bool(step.fork) for step in steps) == branches
    tried = [step.dropped for step in steps if step.dropped]
    assert 2 <= len(tried) <= 3, "what was dropped counts as what was inserted"
    assert {(each.reason, each.origin) for each in tried} == {(DropReason.WORSE, Origin.INSERTED)}
    texts = [endless.decode(each.tokens[: -picky.think.watch]) for each in tried]
    words = [word for text in texts for word in ("wait", "hm", "so") if word in text]
    assert len(set(words)) == len(tried), "another text at each turn"
    alone = sum(len(dropped.tokens) for dropped in tried)  # passes, if they were computed again
    assert branches or with_thoughts - len(passes) < alone


def test_a_thought_that_gains_becomes_the_text(run):
    """Its first token records what would have stood in its place."""
    steps = run(32, profile=ALWAYS_THINK.replace({"think": {"least_gain": -99.0}}))
    plain = run(32, profile=ALWAYS_THINK)
    assert tokens(steps) == tokens(plain)
    left = {step.index: step.dropped for step in steps if step.dropped}
    assert list(left) == [step.index for step in plain if step.triggered_at is not None]
    assert {(d.origin, d.reason) for d in left.values()} == {(Origin.SAMPLED, DropReason.LEFT)}
    first = min(left)
    usual = tokens(run(32, profile=NEVER_THINK))
    assert list(left[first].tokens) == usual[first : first + ALWAYS_THINK.think.watch]


def test_the_model_continues_from_the_inserted_text(run, tiny_model):
    steps = run(12, profile=ALWAYS_THINK, top_logprobs=4)
    assert inserted(steps)
    logits = np.array(tiny_model(mx.array([PROMPT + tokens(steps)])).logits[0], np.float64)
    for step in steps:
        row = logits[len(PROMPT) + step.index - 1]
        logp = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert step.logprob == pytest.approx(logp[step.token], abs=2e-3)
        best = np.argsort(-logp)[:4]
        assert [a.token for a in step.top_logprobs] == best.tolist()
        np.testing.assert_allclose([a.logprob for a in step.top_logprobs], logp[best], atol=2e-3)


@pytest.mark.parametrize(("text", "token", "times"), [(["hm", 77], 77, 2), ("‹s›", 256, 3)])
def test_thinking_text_may_be_a_token_by_number_or_name_or_a_list(run, text, token, times):
    steps = run(50, profile=ALWAYS_THINK.replace({"think": {"text": text}}))
    found = [steps[index].token for index in inserted(steps)]
    assert 1 <= found.count(token) <= times
    assert (len(found) == found.count(token)) is (text == token)


@pytest.mark.slow
def test_texts_take_turns_and_none_stands_twice_in_a_conversation(tiny_model, endless):
    texts = ["wait", "hm", "so"]

    def inserted_first(prompt, seed):
        given = endless.encode(prompt)
        options = {"profile": ALWAYS_THINK, "seed": seed, "max_tokens": 90}
        steps = stream_generate(tiny_model, endless, given, **options)
        said = endless.decode([step.token for step in steps if step.origin is Origin.INSERTED])
        assert all(said.count(text) <= 1 for text in texts)
        return min(texts, key=lambda text: said.find(text) % 1000)

    assert {inserted_first("Why?", seed) for seed in range(3)} == set(texts)
    assert {inserted_first("Why? Wait, so he left.", seed) for seed in range(3)} == {"hm"}


@pytest.mark.parametrize(("unforked", "answers"), [("argmax", 1), ("draw", 3)])
def test_without_a_fork_the_most_probable_token_is_taken_at_its_place(run, unforked, answers):
    profile = always_branch(max_branches=0, unforked=unforked)
    found = [run(8, profile=profile, seed=seed, top_logprobs=1) for seed in range(3)]
    assert len({tuple(tokens(steps)) for steps in found}) == answers
    surest = [step.token == step.top_logprobs[0].token for steps in found for step in steps]
    assert all(surest) is (unforked == "argmax")


@pytest.mark.parametrize("text", [258, -1, ["fine", 999], "</s>", 257])
def test_a_thinking_text_that_cannot_be_used_is_a_profile_error(tiny_model, byte_tokenizer, text):
    profile = ALWAYS_THINK.replace({"think": {"text": text}})
    with pytest.raises(ProfileError, match=r"think\.text"):
        next(stream_generate(tiny_model, byte_tokenizer, PROMPT, profile=profile))


@pytest.mark.model
def test_a_thinking_text_without_tokens_is_a_profile_error(demo):
    for text in ("\x04", "<|endoftext|>"):  # no token for that byte; what stands for the unknown
        profile = ALWAYS_THINK.replace({"think": {"text": text}})
        with pytest.raises(ProfileError, match=r"think\.text"):
            next(stream_generate(*demo, PROMPT, profile=profile))


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("profile", [ALWAYS_THINK, FORKING])
def test_the_cache_holds_all_committed_tokens_but_the_last(tiny_model, endless, profile, pipelined):
    options = {"max_tokens": 24, "seed": 3, "profile": profile, "pipelined": pipelined}
    for taken in (1, 7, 24):
        cache = tiny_model.make_cache()
        stream = stream_generate(tiny_model, endless, PROMPT, prompt_cache=cache, **options)
        committed = PROMPT + tokens(itertools.islice(stream, taken))
        stream.close()
        assert {layer.offset for layer in cache} == {len(committed) - 1}
        expected = tiny_model(mx.array([committed])).logits[0, -1]
        actual = tiny_model(mx.array([committed[-1:]]), cache).logits[0, -1]
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def test_a_filled_cache_and_a_whole_prompt_give_the_same_steps(run, tiny_model, endless):
    cache = tiny_model.make_cache()
    tiny_model(mx.array([PROMPT[:12]]), cache)
    options = {"max_tokens": 20, "seed": 1, "prompt_cache": cache}
    assert tokens(stream_generate(tiny_model, endless, PROMPT[12:], **options)) == tokens(run(20))


@pytest.mark.parametrize("taken", [0, 5])
def test_cancel_stops_before_the_next_token(tiny_model, endless, taken):
    cancel, seen = threading.Event(), []
    options = {"max_tokens": 30, "seed": 1, "cancel": cancel}
    stream = stream_generate(tiny_model, endless, PROMPT, **options)
    if not taken:
        cancel.set()
    for step in stream:
        seen.append(step)
        if len(seen) == taken:
            cancel.set()
    assert len(seen) == taken


def test_prefill_reports_its_progress(byte_tokenizer, monkeypatch):
    monkeypatch.setattr("entropix_mlx.engine.scheduler.prefill_chunk", lambda: 256)
    model, reports = make_tiny_model(max_position_embeddings=2000), []
    total = len(PROMPT) * 40
    report = {"max_tokens": 1, "on_prefill": lambda *report: reports.append(report)}
    list(stream_generate(model, byte_tokenizer, PROMPT * 40, **report))
    assert reports == [(0, total), (256, total), (512, total), (total, total)]


def test_an_answer_without_a_limit_ends_with_the_context(endless):
    model = make_tiny_model(max_position_embeddings=len(PROMPT) + 30)
    steps = list(stream_generate(model, endless, PROMPT, max_tokens=-1, seed=1))
    assert [step.finish_reason for step in steps] == [None] * 29 + ["length"]


def test_the_loop_waits_for_nothing_but_the_numbers_it_reads(run, monkeypatch):
    """`mx.eval` and `mx.synchronize` would wait for the position that was queued ahead."""
    waits = []

    def count(name):
        original = getattr(mx, name)

        def counted(*arguments):
            waits.append(name)
            return original(*arguments)

        monkeypatch.setattr(mx, name, counted)

    count("eval")
    count("synchronize")
    run(20)
    assert waits == ["eval"], "one, of the prefill"


def test_nan_logits_are_an_error(byte_tokenizer):
    model = make_tiny_model()
    model.model.norm.weight = model.model.norm.weight * float("nan")
    with pytest.raises(NonFiniteLogitsError):
        list(stream_generate(model, byte_tokenizer, PROMPT, max_tokens=5))
