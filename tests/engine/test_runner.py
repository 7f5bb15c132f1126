"""The runner on a tiny model: who is admitted, what prompts share, who leaves."""

import itertools
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Settings, stream_generate
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.engine.forward import Engine
from entropix_mlx.engine.prompt_cache import PromptCache
from entropix_mlx.engine.runner import Runner
from entropix_mlx.errors import ContextLengthError, PromptError, SamplerError
from tests.answer.test_forks import always_branch
from tests.conftest import PROMPT, make_tiny_model

SETTINGS = Settings(max_tokens=24, seed=1, profile=always_branch(min_gap=4, depth=5))
PLAIN = Settings(max_tokens=6, seed=1, sampler="top_p")


@pytest.fixture
def tokenizer(endless):
    return endless


@pytest.fixture
def make(tiny_model, tokenizer):
    def make(**options):
        return Runner(options.pop("model", tiny_model), tokenizer, **options)

    return make


def finish(runner):
    """Run what is in the queue; return the tokens by slot."""
    found = {}
    with runner:
        while not runner.idle:
            found = join(found, run_for(runner, 1))
    return found


def run_for(runner, turns):
    """Return the tokens by slot."""
    found = {}
    for _ in range(turns):
        for slot, step in runner.advance():
            found.setdefault(slot, []).append(step.token)
    return found


def join(first, then):
    return {slot: first.get(slot, []) + then.get(slot, []) for slot in first | then}


def tokens_alone(model, tokenizer, prompt, settings=PLAIN):
    return [step.token for step in stream_generate(model, tokenizer, prompt, settings)]


def test_forks_are_reported_while_they_grow(tiny_model, tokenizer):
    reported = []
    listen = {"on_fork": lambda index, fork: reported.append((index, fork))}
    steps = list(stream_generate(tiny_model, tokenizer, PROMPT, SETTINGS, **listen))
    forks = [step for step in steps if step.fork]
    assert sorted({index for index, _ in reported}) == [step.index for step in forks]
    for step in forks:
        growth = [fork for index, fork in reported if index == step.index]
        longest = [max(len(branch.tokens) for branch in fork.branches) for fork in growth]
        assert longest == list(range(1, len(longest) + 1))
        assert growth[-1] == step.fork


def test_an_answer_may_join_and_leave_while_others_run(make, tiny_model, tokenizer):
    alone = [tokens_alone(tiny_model, tokenizer, PROMPT[:n], SETTINGS) for n in (5, 12, 19)]
    runner, found, slots = make(batch=8), {}, []
    for number in range(200):
        if number % 7 == 0 and len(slots) < 3:
            resolved = runner.resolve(SETTINGS)
            slots.append(runner.add(PROMPT[: 5 + 7 * len(slots)], resolved))
        for slot, step in runner.advance():
            found.setdefault(slot, []).append(step.token)
    assert [found[slot] for slot in slots] == alone
    assert runner.idle
    assert all(slot.ended and slot.error is None for slot in slots)


@pytest.mark.parametrize("silence", [0, 1e9], ids=["silent", "not silent"])
@pytest.mark.parametrize("at_once", [1e-9, 1e-2, 1e9], ids=["one", "some", "all"])
def test_answers_take_turns_where_passes_take_long(
    make, monkeypatch, tiny_model, tokenizer, at_once, silence
):
    """Their tokens are the same, and a first token has a pass of its own."""
    monkeypatch.setattr("entropix_mlx.engine.scheduler.LONG_PASS", 0.0)
    monkeypatch.setattr("entropix_mlx.engine.scheduler.LONGEST_PASS", at_once)
    monkeypatch.setattr("entropix_mlx.engine.scheduler.LONGEST_SILENCE", silence)
    monkeypatch.setattr("entropix_mlx.engine.scheduler.SILENT_PASSES", 0)
    ends = 5, 12, 19
    runner = make(batch=4)
    slots = [runner.add(PROMPT[:n], runner.resolve(SETTINGS), client="a") for n in ends]
    with runner:
        found = run_for(runner, 10)
        new = runner.add(PROMPT, runner.resolve(PLAIN), client="b")
        during = run_for(runner, 2 if silence else 8)
        assert new in during
        found = join(join(found, during), finish(runner))
    assert found[new] == tokens_alone(tiny_model, tokenizer, PROMPT)
    for slot, end in zip(slots, ends, strict=True):
        assert found[slot] == tokens_alone(tiny_model, tokenizer, PROMPT[:end], SETTINGS)


def test_prompts_give_way_to_an_answer_that_was_silent_for_long(make, monkeypatch):
    """And it to them, for half of the time."""
    monkeypatch.setattr("entropix_mlx.engine.scheduler.LONGEST_SILENCE", 0)
    monkeypatch.setattr("entropix_mlx.engine.scheduler.SILENT_PASSES", 0)
    monkeypatch.setattr("entropix_mlx.engine.scheduler.LONGEST_PASS", 1e-3)
    runner, chunks, turns = make(batch=2), prefilled(monkeypatch), []
    silent = runner.add(PROMPT, runner.resolve(replace(PLAIN, max_tokens=200)), client="a")
    with runner:
        runner.advance()
        waiting, found = runner.add([65] * 150, runner.resolve(PLAIN), client="b"), {}
        while waiting not in found:
            before = len(chunks)
            found = run_for(runner, 1)
            turns.append(len(chunks) - before)
        assert not silent.ended
    assert {*turns} == {0, 1}


def test_the_more_prompts_wait_the_more_is_computed_of_them(make, monkeypatch):
    now = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(now) / 1000)  # whatever is done takes as long
    monkeypatch.setattr("entropix_mlx.engine.scheduler.time", clock)
    monkeypatch.setattr("entropix_mlx.engine.scheduler.prefill_chunk", lambda: 10**6)
    chunks, sizes = prefilled(monkeypatch), []
    for waiting in (1, 4):
        runner = make(batch=8)
        runner.add(PROMPT, runner.resolve(LONG))
        with runner:
            run_for(runner, 4)
            before = sum(map(len, chunks))
            for number in range(waiting):
                runner.add([number] * 200, runner.resolve(PLAIN))
            runner.advance()
            sizes.append(sum(map(len, chunks)) - before)
    few, many = sizes
    assert 0 < 2 * few < many


def test_settings_that_decide_alike_share_a_sampler(make):
    runner = make()
    one = runner.resolve(PLAIN)
    other = runner.resolve(Settings(max_tokens=9, seed=2, sampler="top_p", stop=("x",)))
    third = runner.resolve(Settings(sampler="top_p", top_p=0.5))
    assert one.sampler is other.sampler is not third.sampler
    assert (one.seed, other.seed, other.settings.max_tokens) == (1, 2, 9)


@pytest.mark.parametrize(("batch", "texts", "most"), [(4, 0, 1), (4, 2, 2), (2, 9, 2), (1, 9, 1)])
def test_the_batch_and_the_memory_bound_who_runs(make, monkeypatch, batch, texts, most):
    """One always may run. The memory holds so many texts."""
    tokens = texts * (len(PROMPT) + PLAIN.max_tokens) + 1
    monkeypatch.setattr("entropix_mlx.engine.runner.cache_tokens", lambda _: tokens)
    runner, seen = make(batch=batch), 0
    for seed in range(5):
        runner.add(PROMPT[seed:], runner.resolve(PLAIN).with_seed(seed))
    with runner:
        while not runner.idle:
            runner.advance()
            seen = max(seen, runner.running)
    assert seen == most


def prefilled(monkeypatch):
    """Return the tokens of the prompts that are computed from now on, chunk by chunk."""
    chunks = []
    prefill = Engine.prefill

    def record(self, text, tokens):
        chunks.append(list(tokens))
        prefill(self, text, tokens)

    monkeypatch.setattr(Engine, "prefill", record)
    return chunks


def test_equal_prompts_are_computed_once(make, monkeypatch, tiny_model, tokenizer):
    runner, chunks = make(batch=2), prefilled(monkeypatch)
    slots = [runner.add(PROMPT, runner.resolve(PLAIN).with_seed(seed)) for seed in range(5)]
    found = finish(runner)
    assert sum(map(len, chunks)) == len(PROMPT) - 1
    for seed, slot in enumerate(slots):
        alone = Settings(max_tokens=6, seed=seed, sampler="top_p")
        assert found[slot] == tokens_alone(tiny_model, tokenizer, PROMPT, alone)


def test_prompts_that_begin_alike_are_computed_from_where_they_differ(make, monkeypatch):
    runner, chunks = make(batch=4, cache=PromptCache(2**20)), prefilled(monkeypatch)
    endings = [b" jumps", b" sleeps", b" barks"]
    for ending in endings:
        runner.add(PROMPT + list(ending), runner.resolve(PLAIN))
    finish(runner)
    assert sum(map(len, chunks)) < len(PROMPT) + sum(map(len, endings))


def test_the_text_of_an_answer_serves_the_next_prompt(make, monkeypatch, tiny_model, tokenizer):
    cache = PromptCache(2**20)
    first = make(cache=cache)
    slot = first.add(PROMPT, first.resolve(PLAIN))
    answered = PROMPT + finish(first)[slot]
    chunks = prefilled(monkeypatch)
    second = make(cache=cache)
    following = [*answered, *b" And then?"]
    slot = second.add(following, second.resolve(PLAIN))
    assert finish(second)[slot] == tokens_alone(tiny_model, tokenizer, following)
    assert slot.prompt.cached == len(answered) - 1
    assert len(chunks[0]) == len(following) - 1 - slot.prompt.cached


def test_the_text_of_a_failed_answer_serves_nobody(make):
    cache = PromptCache(2**20)
    runner = make(cache=cache)

    def fail(done, total):
        if done == total:
            raise RuntimeError("no")

    slot = runner.add(PROMPT, runner.resolve(PLAIN), Hooks(on_prefill=fail))
    finish(runner)
    assert isinstance(slot.error, RuntimeError)
    assert len(cache) == 0


def test_the_text_of_an_answer_is_cached_without_its_stop_string(make, tokenizer):
    cache, (letter,) = PromptCache(2**20), tokenizer.encode("a")
    runner = make(cache=cache)
    stopped = Settings(max_tokens=9, sampler="greedy", logit_bias={letter: 100.0}, stop=("aaa",))
    runner.add(PROMPT, runner.resolve(stopped))
    finish(runner)
    assert cache.take([*PROMPT, *[letter] * 5]).ids == PROMPT


def test_a_text_is_not_cached_while_another_answer_begins_with_it(make):
    cache = PromptCache(2**20)
    runner = make(batch=2, cache=cache)
    short, long = (runner.add(PROMPT, runner.resolve(replace(PLAIN, max_tokens=n))) for n in (1, 9))
    with runner:
        while not short.ended:
            runner.advance()
        assert not long.ended
        assert len(cache) == 0


def test_one_cancelled_answer_does_not_hold_back_the_prompt_that_others_share(make, monkeypatch):
    cancel, chunks = Event(), prefilled(monkeypatch)
    leaves = Hooks(cancel=cancel, on_prefill=lambda done, total: cancel.set())
    runner = make(batch=2)
    for hooks in (leaves, None):
        runner.add(PROMPT, runner.resolve(PLAIN), hooks)
    with runner:
        runner.advance()
        assert chunks == [PROMPT[:-1]]


def test_a_turn_computes_no_more_of_all_prompts_than_one_chunk(make, monkeypatch):
    monkeypatch.setattr("entropix_mlx.engine.scheduler.prefill_chunk", lambda: 20)
    runner, chunks = make(batch=8, steady=True), prefilled(monkeypatch)
    for number in range(6):
        runner.add([number, *PROMPT[:12]], runner.resolve(PLAIN))
    with runner:
        while not runner.idle:
            before = sum(map(len, chunks))
            runner.advance()
            assert sum(map(len, chunks)) - before <= 20


def test_a_short_prompt_does_not_wait_for_a_long_one(make, monkeypatch):
    monkeypatch.setattr("entropix_mlx.engine.scheduler.prefill_chunk", lambda: 20)
    runner = make(batch=2, steady=True)
    long = runner.add([65] * 150, runner.resolve(PLAIN))
    short = runner.add(PROMPT, runner.resolve(PLAIN))
    order = list(finish(runner))
    assert order == [short, long]


def test_the_answers_to_one_request_do_not_hold_back_another(make):
    runner, many, order = make(batch=2), Hooks(), []
    answers = [runner.add([n, *PROMPT], runner.resolve(PLAIN), many) for n in range(8)]
    other = runner.add(PROMPT, runner.resolve(PLAIN))
    with runner:
        while not runner.idle:
            order += [slot for slot, _ in runner.advance() if slot not in order]
    assert order.index(other) <= 2
    assert {*order} == {other, *answers}


LONG = replace(PLAIN, max_tokens=24)


@pytest.mark.parametrize(
    ("others", "most"),
    [
        ([("a", 8)], 4),
        ([("b", 8)], 4),
        ([("b", 1)] * 8, 12),
        ([("b", 1)] * 2 + [("a", 3), ("a", 3)], 4),
    ],
    ids=["one request", "its own request", "its own client", "several"],
)
def test_a_first_answer_takes_the_place_of_one_that_can_spare_it(
    make, tiny_model, tokenizer, others, most
):
    """Of a client or a request with several at once; of any other one only after a while."""
    runner, slots = make(batch=4), []
    for number, (client, count) in enumerate(others):
        hooks = Hooks()
        for seed in range(count):
            resolved = runner.resolve(LONG).with_seed(10 * number + seed)
            slots.append(runner.add(PROMPT[number:], resolved, hooks, client=client))
    with runner:
        found, waited = run_for(runner, 3), 0
        asked = runner.add(PROMPT[9:], runner.resolve(PLAIN), client="b")
        while asked not in found:
            found = join(found, run_for(runner, 1))
            waited += 1
            assert runner.running <= 4
        found = join(found, finish(runner))
    assert waited <= most
    for slot in slots:
        settings = replace(LONG, seed=slot.resolved.seed)
        alone = tokens_alone(tiny_model, tokenizer, slot.prompt.tokens, settings)
        assert found[slot] == alone


@pytest.mark.parametrize("others", [0, 3])
def test_an_answer_that_nobody_reads_gives_its_place_up(make, tiny_model, tokenizer, others):
    runner = make(batch=1)
    slot = runner.add(PROMPT, runner.resolve(LONG))
    with runner:
        found = run_for(runner, 5)
        slot.unread = True
        waiting = [runner.add(PROMPT[n:], runner.resolve(PLAIN)) for n in range(1, 1 + others)]
        during = run_for(runner, 60)
        assert slot not in run_for(runner, 1)
        assert {*during} - {slot} == {*waiting}
        assert runner.running == 0
        slot.unread = False
        found = join(join(found, during), finish(runner))
    assert found[slot] == tokens_alone(tiny_model, tokenizer, PROMPT, LONG)


def test_an_answer_that_sits_out_can_be_cancelled(make):
    runner, cancel = make(batch=1), Event()
    slot = runner.add(PROMPT, runner.resolve(LONG), Hooks(cancel=cancel))
    with runner:
        run_for(runner, 5)
        slot.unread = True
        run_for(runner, 2)
        cancel.set()
        runner.advance()
    assert slot.ended
    assert runner.idle


def test_prompts_that_begin_alike_are_computed_once(make, monkeypatch, tiny_model, tokenizer):
    """However long their common beginning is, and whichever of them ends before it does."""
    monkeypatch.setattr("entropix_mlx.engine.scheduler.prefill_chunk", lambda: 32)
    runner, chunks = make(batch=6, cache=PromptCache(2**20)), prefilled(monkeypatch)
    common, cancel = [65 + n % 50 for n in range(170)], Event()
    gone = runner.add([*common, 1], runner.resolve(PLAIN), Hooks(cancel=cancel))
    with runner:
        runner.advance()
        slots = [runner.add([*common, *b"!" * n], runner.resolve(PLAIN)) for n in range(1, 12, 3)]
        runner.advance()
        cancel.set()
        found = finish(runner)
    assert gone.ended
    assert sum(map(len, chunks)) < 1.5 * len(common)
    for slot in slots:
        assert found[slot] == tokens_alone(tiny_model, tokenizer, slot.prompt.tokens)


def test_a_prompt_may_be_scored(make, tiny_model):
    runner = make()
    slot = runner.add(PROMPT, runner.resolve(PLAIN), scored=2)
    finish(runner)
    logits = np.array(tiny_model(mx.array([PROMPT[:-1]])).logits[0], np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    own = [row[token] for row, token in zip(logprobs, PROMPT[1:], strict=True)]
    assert [found.logprob for found in slot.prompt.likelihoods] == pytest.approx(own, abs=1e-3)
    for found, row in zip(slot.prompt.likelihoods, logprobs, strict=True):
        assert [token for token, _ in found.listed] == list(np.argsort(-row)[:2])
        assert (found.rank == 1) == (found.logprob >= row.max() - 1e-6)


def test_a_cancelled_answer_leaves_and_holds_nobody_back(make):
    runner, cancel = make(batch=1), Event()
    first = runner.add(PROMPT, runner.resolve(PLAIN))
    gone = runner.add(PROMPT, runner.resolve(PLAIN), Hooks(cancel=cancel))
    last = runner.add(PROMPT, runner.resolve(PLAIN))
    cancel.set()
    found = finish(runner)
    assert gone.ended
    assert gone not in found
    assert found[first] == found[last]


def test_waiting_answers_can_be_dropped(make):
    runner = make(batch=1)
    slots = [runner.add(PROMPT, runner.resolve(PLAIN)) for _ in range(3)]
    with runner:
        runner.advance()
        assert runner.drop_waiting() == slots[1:]
        assert (runner.waiting, runner.running) == (0, 1)


def test_an_answer_without_room_ends_at_once(make):
    runner = make()
    slot = runner.add(PROMPT, runner.resolve(Settings(max_tokens=0)))
    assert slot.ended
    assert finish(runner) == {}


@pytest.mark.parametrize(
    ("prompt", "settings", "error"),
    [
        ([], PLAIN, PromptError),
        ([258], PLAIN, PromptError),
        ([65] * 300, PLAIN, ContextLengthError),
        (PROMPT, Settings(logit_bias={999: 1.0}), SamplerError),
    ],
)
def test_what_cannot_be_answered_is_refused_before_any_pass(make, prompt, settings, error):
    runner = make()
    with pytest.raises(error):
        runner.add(prompt, runner.resolve(settings))
    assert runner.idle


def test_one_failure_does_not_touch_the_others(make, tokenizer):
    model = make_tiny_model(seed=2)
    runner = make(model=model, batch=2)

    def fail(sentence):
        raise RuntimeError("no")

    noted = Settings(max_tokens=6, seed=1, changes={"notes": {"min_entropy": 0.0, "draft": 0}})
    failing = runner.add(PROMPT, runner.resolve(noted), Hooks(retrieve=fail))
    other = runner.add(PROMPT, runner.resolve(PLAIN))
    found = finish(runner)
    assert found[other] == tokens_alone(model, tokenizer, PROMPT)
    assert failing.ended
