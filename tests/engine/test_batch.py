"""Sequences in one batch: each is what it is alone, and what a reading of its text measures."""

import itertools
import threading

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Settings, batch_generate, score, stream_generate
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.engine.batch import Batch
from entropix_mlx.engine.prompts import PromptCache
from entropix_mlx.engine.sequence import Sequence
from entropix_mlx.engine.speculation import Speculation
from entropix_mlx.errors import (
    ConstraintError,
    ContextLengthError,
    NonFiniteLogitsError,
    ProfileError,
    PromptError,
    SamplerError,
)
from entropix_mlx.models.base import LanguageModel
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Origin
from tests.answer.test_forks import always_branch
from tests.architectures import make as make_architecture
from tests.conftest import PROMPT, make_tiny_model, tokens

ALWAYS_THINK = Profile.load().replace(
    {
        "thresholds": {"low_entropy": -1, "think_min_entropy": -1, "think_max_varentropy": 1e9},
        "think": {"text": [" Wait,", " Hm.", " So:"], "min_gap": 2},
    }
)
FORKING = always_branch(min_gap=3, width=3, depth=5, max_branches=4)
PROFILES = {"plain": Profile.load(), "thoughts": ALWAYS_THINK, "forks": FORKING}
PROMPTS = [PROMPT, PROMPT[:5], PROMPT * 2, PROMPT[3:], PROMPT[:5]]
ARCHITECTURES = ("llama", "gemma3_text", "mixtral", "falcon_h1", "qwen3_next")
"""Our own port, sliding windows, experts, and recurrent layers beside attention."""


@pytest.fixture(scope="module")
def models():
    """Return a function from an architecture to a tiny random model of it."""
    made = {"llama": make_tiny_model()}

    def model_of(architecture):
        if architecture not in made:
            made[architecture] = LanguageModel(*make_architecture(architecture))
        return made[architecture]

    return model_of


@pytest.fixture
def run(tiny_model, sentences):
    def run(max_tokens=40, **options):
        options.setdefault("seed", 1)
        return list(
            stream_generate(tiny_model, sentences, PROMPT, max_tokens=max_tokens, **options)
        )

    return run


@pytest.fixture
def add(tiny_model, sentences):
    """Return a function that adds a sequence to a batch."""

    def add(batch, prompt=PROMPT, hooks=None, model=tiny_model, cache=None, **settings):
        settings = {"seed": 1, "max_tokens": 12} | settings
        resolved = Settings(**settings).resolved(model.config)
        return batch.add(Sequence(model, sentences, prompt, resolved, hooks, cache=cache))

    return add


def run_all(batch):
    steps = {}
    while not batch.idle:
        for sequence, step in batch.step():
            steps.setdefault(sequence, []).append(step)
    return steps


def same(steps, others):
    assert tokens(steps) == tokens(others)
    for one, other in zip(steps, others, strict=True):
        assert one.metrics[:] == pytest.approx(other.metrics[:], rel=1e-3, abs=1e-3)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert (one.origin, one.text) == (other.origin, other.text)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_in_a_batch_are_what_they_are_alone(models, sentences, architecture, profile):
    model = models(architecture)
    options = {"max_tokens": 14, "profile": PROFILES[profile], "attention_layers": "all"}
    own = [Settings(seed=seed, **options) for seed in range(len(PROMPTS))]
    together = batch_generate(model, sentences, PROMPTS, own, batch=3).finish()
    for prompt, settings, answer in zip(PROMPTS, own, together, strict=True):
        assert answer.error is None
        same(answer.steps, list(stream_generate(model, sentences, prompt, settings)))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_steps_are_what_a_reading_of_the_text_measures(models, sentences, architecture, profile):
    model = models(architecture)
    options = {"profile": PROFILES[profile], "seed": 2}
    steps = list(stream_generate(model, sentences, PROMPT, max_tokens=40, **options))
    origins = {"plain": Origin.SAMPLED, "thoughts": Origin.INSERTED, "forks": Origin.BRANCH}
    assert origins[profile] in {step.origin for step in steps}
    read = score(model, sentences, tokens(steps), after=PROMPT, **options)
    for step, other in zip(steps, read, strict=True):
        assert step.metrics[:] == pytest.approx(other.metrics[:], rel=1e-3, abs=1e-3)
        assert step.logprob == pytest.approx(other.logprob, abs=1e-3)


@pytest.mark.parametrize("profile", PROFILES)
def test_pipelining_does_not_change_the_steps(run, profile):
    options = {"profile": PROFILES[profile], "top_logprobs": 2}
    same(run(24, **options), run(24, **options, pipelined=False))


@pytest.mark.parametrize("profile", ["thoughts", "forks"])
def test_a_branch_or_thought_is_followed_from_its_own_tokens(run, tiny_model, profile):
    steps = run(24, profile=PROFILES[profile], top_logprobs=4)
    cache = tiny_model.make_cache()
    logits = np.array(tiny_model(mx.array([PROMPT + tokens(steps)]), cache).logits[0], np.float64)
    for step in steps:
        row = logits[len(PROMPT) + step.index - 1]
        logp = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert step.logprob == pytest.approx(logp[step.token], abs=2e-3)
        best = np.argsort(-logp)[:4]
        assert [a.token for a in step.top_logprobs] == best.tolist()


def test_branches_are_what_would_have_been_generated(run):
    (fork, *_) = (step for step in run(24, profile=FORKING) if step.fork)
    plain = FORKING.replace({"branch": {"max_branches": 0}})
    before = tokens(run(fork.index, profile=plain)) if fork.index else []
    for branch in fork.fork.branches:
        assert branch.first_logprob <= fork.fork.branches[0].first_logprob + 1e-3
    assert len({branch.tokens[0] for branch in fork.fork.branches}) == 3
    whole = run(fork.index + 1, profile=FORKING)
    assert tokens(whole)[: fork.index] == before
    assert whole[fork.index].token == fork.fork.branches[fork.fork.winner].tokens[0]


def test_a_shorter_answer_is_the_beginning_of_a_longer_one(run):
    whole = run(24, profile=FORKING)
    assert any(step.fork for step in whole)
    for length in (1, 7, 15):
        short = run(length, profile=FORKING)
        assert [(s.token, s.fork) for s in short] == [(s.token, s.fork) for s in whole[:length]]


def test_a_seed_repeats_whatever_the_global_random_state_is_and_another_differs(run):
    mx.random.seed(5)
    before = np.array(mx.random.state[0])
    first = run()
    np.testing.assert_array_equal(np.array(mx.random.state[0]), before)
    mx.random.seed(6)
    assert run() == first
    assert tokens(run(seed=2)) != tokens(first)


@pytest.mark.parametrize(("unforked", "answers"), [("argmax", 1), ("draw", 3)])
def test_without_a_fork_the_most_probable_token_is_taken_at_its_place(run, unforked, answers):
    profile = always_branch(max_branches=0, unforked=unforked)
    found = [run(8, profile=profile, seed=seed, top_logprobs=1) for seed in range(3)]
    assert len({tuple(tokens(steps)) for steps in found}) == answers


# ── Caches ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_given_cache_holds_all_committed_tokens_but_the_last(
    tiny_model, sentences, profile, pipelined
):
    options = {"max_tokens": 24, "seed": 3, "pipelined": pipelined, "profile": PROFILES[profile]}
    for taken in (1, 7, 24):
        cache = tiny_model.make_cache()
        stream = stream_generate(tiny_model, sentences, PROMPT, prompt_cache=cache, **options)
        committed = PROMPT + tokens(itertools.islice(stream, taken))
        stream.close()
        assert {layer.offset for layer in cache} == {len(committed) - 1}
        expected = tiny_model(mx.array([committed]), tiny_model.make_cache()).logits[0, -1]
        actual = tiny_model(mx.array([committed[-1:]]), cache).logits[0, -1]
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def test_a_filled_cache_and_a_whole_prompt_give_the_same_steps(run, tiny_model, sentences):
    cache = tiny_model.make_cache()
    tiny_model(mx.array([PROMPT[:12]]), cache)
    options = {"max_tokens": 20, "seed": 1, "prompt_cache": cache}
    assert tokens(stream_generate(tiny_model, sentences, PROMPT[12:], **options)) == tokens(run(20))


@pytest.mark.parametrize("architecture", ["llama", "falcon_h1"])
def test_what_was_computed_serves_prompts_that_begin_so(models, sentences, add, architecture):
    model, cache = models(architecture), PromptCache(2**30)
    batch = Batch(model, sentences, size=2, cache=cache)
    first = add(batch, model=model)
    (steps,) = run_all(batch).values()
    longer = [*PROMPT, *tokens(steps), *PROMPT[:4]]
    second = add(batch, longer, model=model)
    (found,) = run_all(batch).values()
    assert first.cached == 0
    assert second.cached >= len(PROMPT)
    expected = stream_generate(model, sentences, longer, seed=1, max_tokens=12)
    same(found, list(expected))


@pytest.mark.parametrize("architecture", ["llama", "falcon_h1"])
def test_a_prompt_that_is_cached_whole_is_read_for_its_last_token(
    models, sentences, add, architecture
):
    model, cache = models(architecture), PromptCache(2**30)
    batch = Batch(model, sentences, cache=cache)
    add(batch, model=model, max_tokens=4)
    (steps,) = run_all(batch).values()
    for known in ([*PROMPT, *tokens(steps)[:-1]], PROMPT):
        add(batch, known, model=model)
        (found,) = run_all(batch).values()
        same(found, list(stream_generate(model, sentences, known, seed=1, max_tokens=12)))


def test_a_short_text_takes_no_more_of_the_prompt_cache_than_it_needs(tiny_model, sentences, add):
    cache = PromptCache(2**30)
    batch = Batch(tiny_model, sentences, cache=cache)
    add(batch)
    run_all(batch)
    assert len(cache) == 1
    assert cache.nbytes <= (len(PROMPT) + 12) * tiny_model.cache_bytes_per_token
    cache.limit(0)
    assert len(cache) == 0


def test_a_failed_answer_serves_nobody(sentences, add):
    model, cache = make_tiny_model(), PromptCache(2**30)
    model.inner.model.norm.weight = model.inner.model.norm.weight * float("nan")
    batch = Batch(model, sentences, cache=cache)
    failed = add(batch, model=model)
    run_all(batch)
    assert isinstance(failed.error, NonFiniteLogitsError)
    assert len(cache) == 0


# ── Who runs, and how an answer ends ────────────────────────────────────────────────────────────


def test_first_come_first_served(tiny_model, sentences, add):
    batch = Batch(tiny_model, sentences, size=2)
    sequences = [add(batch, max_tokens=length) for length in (3, 40, 3, 3)]
    ended = []
    while not batch.idle:
        batch.step()
        assert len(batch.running) <= 2
        ended += [each for each in sequences if each.ended and each not in ended]
    assert [sequences.index(each) for each in ended] == [0, 2, 3, 1]


def test_the_memory_bounds_who_runs(tiny_model, sentences, add, monkeypatch):
    monkeypatch.setattr("entropix_mlx.engine.batch.cache_tokens", lambda model: 70)
    batch = Batch(tiny_model, sentences, size=4)
    sequences = [add(batch) for _ in range(4)]
    assert batch.capacity(sequences) == 2
    batch.step()
    assert len(batch.running) == 2
    assert all(len(steps) == 12 for steps in run_all(batch).values())


def test_a_prompt_that_never_fits_is_refused(tiny_model, sentences, add, monkeypatch):
    monkeypatch.setattr("entropix_mlx.engine.batch.cache_tokens", lambda model: 30)
    batch = Batch(tiny_model, sentences, size=2)
    refused, fine = add(batch, PROMPT * 2), add(batch, PROMPT[:4], max_tokens=2)
    steps = run_all(batch)
    assert isinstance(refused.error, ContextLengthError)
    assert len(steps[fine]) == 2


def test_a_long_prompt_is_read_while_others_run(tiny_model, sentences, add, monkeypatch):
    monkeypatch.setattr("entropix_mlx.engine.batch.prefill_chunk", lambda: 40)
    batch = Batch(tiny_model, sentences, size=2)
    add(batch, max_tokens=60)
    for _ in range(3):
        batch.step()
    reports = []
    add(batch, PROMPT * 3, Hooks(on_prefill=lambda done, total: reports.append((done, total))))
    committed = [len(batch.step()) for _ in range(5)]
    assert all(committed)
    total = len(PROMPT) * 3
    assert reports[:3] == [(0, total), (10, total), (20, total)]


def test_prefill_reports_its_progress(tiny_model, sentences, add, monkeypatch):
    monkeypatch.setattr("entropix_mlx.engine.batch.prefill_chunk", lambda: 64)
    batch, reports = Batch(tiny_model, sentences), []
    total = len(PROMPT) * 9
    add(batch, PROMPT * 9, Hooks(on_prefill=lambda *report: reports.append(report)))
    run_all(batch)
    assert reports == [(0, total), (64, total), (128, total), (total, total)]


@pytest.mark.parametrize("taken", [0, 5])
@pytest.mark.parametrize("profile", PROFILES)
def test_cancel_stops_before_the_next_token(tiny_model, sentences, taken, profile):
    cancel, seen = threading.Event(), []
    options = {"max_tokens": 30, "seed": 1, "profile": PROFILES[profile]}
    stream = stream_generate(tiny_model, sentences, PROMPT, hooks=Hooks(cancel), **options)
    if not taken:
        cancel.set()
    for step in stream:
        seen.append(step)
        if len(seen) == taken:
            cancel.set()
    assert len(seen) == taken


@pytest.mark.parametrize("when", ["waiting", "reading", "running"])
def test_a_cancelled_answer_leaves_and_holds_nobody_back(tiny_model, sentences, add, when):
    cancel = threading.Event()
    batch = Batch(tiny_model, sentences, size=1 if when == "waiting" else 2)
    other = add(batch)
    cancelled = add(batch, PROMPT * 4, Hooks(cancel=cancel))
    for _ in range({"waiting": 1, "reading": 1, "running": 9}[when]):
        batch.step()
    cancel.set()
    run_all(batch)
    assert cancelled.ended
    assert cancelled.error is None
    assert len(other.tokens) == 12


def test_one_failure_does_not_touch_the_others(tiny_model, sentences, add):
    def fail(*_):
        raise RuntimeError("a hook failed")

    batch = Batch(tiny_model, sentences, size=4)
    at_once = Profile.load().replace({"notes": {"when": "start"}})
    failing = [
        add(batch, hooks=Hooks(on_prefill=fail)),
        add(batch, hooks=Hooks(on_fork=fail), profile=FORKING),
        add(batch, hooks=Hooks(retrieve=fail), profile=at_once),
    ]
    fine = add(batch)
    steps = run_all(batch)
    assert all(isinstance(sequence.error, RuntimeError) for sequence in failing)
    same(steps[fine], list(stream_generate(tiny_model, sentences, PROMPT, seed=1, max_tokens=12)))


def test_a_person_is_asked_while_the_others_go_on(tiny_model, sentences, add):
    profile = FORKING.replace({"branch": {"ask_margin": 1e9}})
    batch = Batch(tiny_model, sentences, size=2)
    asking = add(batch, hooks=Hooks(choose=lambda fork: 1), profile=profile, max_tokens=20)
    other = add(batch, max_tokens=20)
    while asking.undecided is None:
        batch.step()
    for _ in range(30):
        batch.step()
    assert other.ended
    assert asking.undecided is not None
    index = asking.index
    asking.ask()
    steps = []
    while not batch.idle:
        steps += batch.step()
        asking.ask()
    assert steps[0][1].index == index
    assert steps[0][1].origin is Origin.CHOSEN
    assert steps[0][1].fork.winner == 1


@pytest.mark.parametrize(
    ("prompt", "settings", "error"),
    [
        ([], {}, PromptError),
        ([999], {}, PromptError),
        ([1] * 300, {}, ContextLengthError),
        ([1], {"logit_bias": {999: 1.0}}, SamplerError),
        ([1], {"constraint": {"regex": "(a"}}, ConstraintError),
        ([1], {"changes": {"think": {"text": 999}}}, ProfileError),
        ([1], {"changes": {"think": {"text": "</s>"}}}, ProfileError),
    ],
)
def test_what_cannot_be_answered_is_refused_before_any_pass(
    tiny_model, byte_tokenizer, prompt, settings, error
):
    with pytest.raises(error):
        stream_generate(tiny_model, byte_tokenizer, prompt, **settings)


def test_an_answer_without_a_limit_ends_with_the_context(endless):
    model = make_tiny_model(max_position_embeddings=len(PROMPT) + 30)
    steps = list(stream_generate(model, endless, PROMPT, max_tokens=-1, seed=1))
    assert [step.finish_reason for step in steps] == [None] * 29 + ["length"]


def test_an_answer_without_room_ends_at_once(tiny_model, sentences, add):
    batch = Batch(tiny_model, sentences)
    nothing = add(batch, max_tokens=0)
    assert run_all(batch) == {}
    assert nothing.ended


def test_the_likelihoods_of_a_prompt(tiny_model, sentences):
    resolved = Settings(seed=1, max_tokens=1).resolved(tiny_model.config)
    batch = Batch(tiny_model, sentences)
    sequence = batch.add(Sequence(tiny_model, sentences, PROMPT, resolved, scored=2))
    run_all(batch)
    logits = tiny_model(mx.array([PROMPT]), tiny_model.make_cache()).logits[0]
    logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    assert len(sequence.likelihoods) == len(PROMPT) - 1
    for row, (token, found) in enumerate(zip(PROMPT[1:], sequence.likelihoods, strict=True)):
        assert found.logprob == pytest.approx(logprobs[row, token], abs=1e-3)
        assert found.rank == 1 + (logprobs[row] > logprobs[row, token]).sum()
        assert [t for t, _ in found.listed] == np.argsort(-logprobs[row])[:2].tolist()


# ── Penalties, speculation ──────────────────────────────────────────────────────────────────────


def test_a_bias_bans_and_forces_tokens(run):
    assert set(tokens(run(9, logit_bias={3: 100.0}))) == {3}
    usual = tokens(run(9, sampler="greedy"))
    assert not set(usual) & set(
        tokens(run(9, sampler="greedy", logit_bias=dict.fromkeys(usual, -100.0)))
    )


PENALTIES = [{"repetition_penalty": 1.9}, {"presence_penalty": 1.5}, {"frequency_penalty": 0.7}]


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize("profile", ["plain", "forks"])
def test_penalties_count_the_text(run, tiny_model, penalty, profile):
    """What is drawn greedily has the highest logit, less what its own text costs."""
    if profile == "forks":
        same(
            run(30, profile=FORKING, **penalty),
            run(30, profile=FORKING, **penalty, pipelined=False),
        )
        return
    steps = run(30, sampler="greedy", **penalty)
    text = PROMPT + tokens(steps)
    logits = np.array(tiny_model(mx.array([text]), tiny_model.make_cache()).logits[0], np.float64)
    (name, value), *_ = penalty.items()
    for step in steps:
        z, before = logits[len(PROMPT) + step.index - 1].copy(), text[: len(PROMPT) + step.index]
        if name == "repetition_penalty":
            seen = list(set(before))
            z[seen] = np.where(z[seen] > 0, z[seen] / value, z[seen] * value)
        else:
            answered = before[len(PROMPT) :]
            counted = set(answered) if name == "presence_penalty" else answered
            for token in counted:
                z[token] -= value
        assert z[step.token] == pytest.approx(z.max(), abs=1e-3)


def repeating(model, tokenizer, **options):
    prompt = PROMPT * 4
    return list(stream_generate(model, tokenizer, prompt, max_tokens=60, seed=1, **options))


@pytest.mark.parametrize("sampler", ["greedy", "temperature"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "falcon_h1"])
def test_speculation_changes_no_token(models, endless, architecture, sampler):
    model = models(architecture)
    options = {"sampler": sampler, "temperature": 0.1} if sampler == "temperature" else {}
    plain = repeating(model, endless, speculation="off", **options)
    for mode in ("auto", 4):
        steps = repeating(model, endless, speculation=mode, **options)
        same(steps, plain)
    assert not any(step.proposed for step in plain)


def test_what_followed_the_same_tokens_is_proposed():
    speculation = Speculation()
    speculation.follow([1, 2, 3, 4, 5, 1, 2])
    assert speculation.propose() == []
    speculation.follow([1, 2, 3, 4, 5, 1, 2, 3])
    assert speculation.propose() == [4, 5, 1]
    speculation.receive(3, 3)
    assert speculation.propose() == [4, 5, 1, 2, 3, 4]
    speculation.receive(6, 0)
    assert speculation.propose() == []


def test_a_text_that_repeats_itself_takes_fewer_passes(tiny_model, endless):
    bias = dict.fromkeys((3,), 100.0)
    steps = repeating(tiny_model, endless, logit_bias=bias)
    assert sum(step.accepted for step in steps) > len(steps) / 2
    assert sum(step.proposed for step in steps) >= sum(step.accepted for step in steps)


def test_nothing_is_proposed_where_a_pass_of_several_costs_too_much(endless, monkeypatch):
    monkeypatch.setattr(LanguageModel, "block_cost", lambda _, length: 0.8 * length)
    bias = dict.fromkeys((3,), 100.0)
    steps = repeating(make_tiny_model(), endless, logit_bias=bias)
    assert not any(step.proposed for step in steps)
    asked = repeating(make_tiny_model(), endless, logit_bias=bias, speculation=3)
    assert {step.proposed for step in asked} == {0, 3}


def test_the_cost_of_a_block_is_measured_once():
    model = make_tiny_model()
    cost = model.block_cost(8)
    assert cost > 0
    assert model.block_cost(8) == cost


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
    run(20, speculation="off")
    assert waits == ["eval"], "one, of the prefill"
