"""The decode loop on a tiny model: insertions, limits, the cache, cancelling, synchronisation."""

import itertools
import threading
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import generate, stream_generate
from entropix_mlx.answer.interventions import thinking
from entropix_mlx.engine.forward import Engine
from entropix_mlx.errors import (
    ContextLengthError,
    NonFiniteLogitsError,
    ProfileError,
    PromptError,
    SamplerError,
)
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import DropReason, Origin, Strategy
from tests.answer.test_forks import always_branch
from tests.conftest import make_tiny_model

pytestmark = pytest.mark.slow

PROMPT = list(b"The quick brown fox")
ALWAYS_THINK = Profile.load().replace(
    {
        "thresholds": {"low_entropy": -1, "think_min_entropy": -1, "think_max_varentropy": 1e9},
        "think": {"text": [" Wait,", " Hm.", " So:"], "watch": 4, "loop_length": 0},
    }
)


@pytest.fixture
def run(tiny_model, byte_tokenizer):
    byte_tokenizer._eos_token_ids = set()  # so that a run has the length that is asked for

    def run(max_tokens=40, **options):
        options.setdefault("seed", 1)
        return list(
            stream_generate(tiny_model, byte_tokenizer, PROMPT, max_tokens=max_tokens, **options)
        )

    yield run
    byte_tokenizer._eos_token_ids = {257}


@pytest.mark.parametrize("profile", [Profile.load(), ALWAYS_THINK], ids=["reference", "thinking"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.usefixtures("anywhere")
def test_pipelining_does_not_change_the_steps(run, profile, seed):
    assert run(profile=profile, seed=seed) == run(profile=profile, seed=seed, pipelined=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_shorter_answer_is_the_beginning_of_a_longer_one(run, seed):
    profile = always_branch(depth=9)
    whole = run(profile=profile, seed=seed)
    assert any(step.fork for step in whole)
    for length in (1, 4, 7, 15, 30):
        short = run(length, profile=profile, seed=seed)
        assert [(s.token, s.fork) for s in short] == [(s.token, s.fork) for s in whole[:length]]


def test_a_seed_repeats_and_another_differs(run):
    texts = [[step.token for step in run(seed=seed)] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_global_random_state_is_neither_read_nor_changed(run):
    mx.random.seed(5)
    before = np.array(mx.random.state[0])
    first = run()
    np.testing.assert_array_equal(np.array(mx.random.state[0]), before)
    mx.random.seed(6)
    assert run() == first


@pytest.mark.usefixtures("anywhere")
def test_thinking_text_is_inserted_with_its_limits(run, byte_tokenizer):
    steps = run(90, profile=ALWAYS_THINK)
    inserted = [step.index for step in steps if step.origin is Origin.INSERTED]
    starts = [index for index in inserted if index - 1 not in inserted]
    assert starts == [1, 1 + 6 + 16, 1 + 6 + 16 + 4 + 16], "never as the first words"
    assert byte_tokenizer.decode([steps[n].token for n in inserted]) == " Wait, Hm. So:"
    for step in steps:
        expected = Strategy.THINK if step.index in inserted else Strategy.THINK_SAMPLE
        assert step.strategy is expected
        assert (step.triggered_at is not None) == (step.index in starts)


def test_where_no_prose_is_nothing_is_inserted(run):
    """The tiny model writes nothing that reads like a sentence: the wishes are dropped."""
    never = ALWAYS_THINK.replace({"think": {"max_insertions": 0}})
    assert run(60, profile=ALWAYS_THINK) == run(60, profile=never)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("pipelined", [True, False])
def test_a_dropped_thought_leaves_its_record_alone(run, byte_tokenizer, monkeypatch, pipelined):
    monkeypatch.setattr(thinking, "_echoed", lambda *_: True)
    steps = run(60, profile=ALWAYS_THINK, pipelined=pipelined)
    never = ALWAYS_THINK.replace({"think": {"max_insertions": 0}})
    bare = [replace(step, dropped=None) for step in steps]
    assert bare == run(60, profile=never, pipelined=pipelined)
    tried = {step.index: step.dropped for step in steps if step.dropped}
    assert list(tried) == [1, 18, 35], "what was tried counts as what was kept"
    for dropped, text in zip(tried.values(), ALWAYS_THINK.think.text, strict=True):
        tokens = byte_tokenizer.encode(text)
        assert list(dropped.tokens[: len(tokens)]) == tokens
        assert len(dropped.tokens) == len(tokens) + ALWAYS_THINK.think.watch
        assert (dropped.reason, dropped.origin) == (DropReason.ECHO, Origin.INSERTED)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("branches", [0, 3])
def test_a_thought_that_gains_nothing_is_dropped(run, monkeypatch, pipelined, branches):
    """What was followed in its place becomes the text, as far as nothing else is wanted."""
    passes = []
    queue = Engine.queue
    monkeypatch.setattr(Engine, "queue", lambda *about: passes.append(1) or queue(*about))
    forks = {"trigger": "chance", "trigger_at": 0.2, "width": 2, "depth": 3, "min_gap": 1}
    forks["max_branches"] = branches
    never = ALWAYS_THINK.replace({"branch": forks, "think": {"max_insertions": 0}})
    picky = never.replace({"think": {"max_insertions": 3, "least_gain": 99.0}})
    steps = run(60, profile=picky, pipelined=pipelined)
    with_thoughts = len(passes)
    passes.clear()
    tried = [step.dropped for step in steps if step.dropped]
    assert {dropped.reason for dropped in tried} == {DropReason.WORSE}
    assert len(tried) == 3
    plain = run(60, profile=never, pipelined=pipelined)
    assert [step.token for step in steps] == [step.token for step in plain]
    assert [bool(step.fork) for step in steps] == [bool(step.fork) for step in plain]
    assert sum(bool(step.fork) for step in steps) == branches
    alone = sum(len(dropped.tokens) for dropped in tried)  # passes, if they were computed again
    assert with_thoughts - len(passes) < alone
    assert [step.origin for step in steps] == [step.origin for step in plain]


@pytest.mark.usefixtures("anywhere")
def test_a_thought_that_gains_is_kept(run):
    """Its first token says what would have stood in its place."""
    steps = run(60, profile=ALWAYS_THINK.replace({"think": {"least_gain": -99.0}}))
    plain = run(60, profile=ALWAYS_THINK)
    assert [step.token for step in steps] == [step.token for step in plain]
    left = {step.index: step.dropped for step in steps if step.dropped}
    assert list(left) == [step.index for step in plain if step.triggered_at is not None]
    assert {(one.origin, one.reason) for one in left.values()} == {
        (Origin.SAMPLED, DropReason.LEFT)
    }
    never = ALWAYS_THINK.replace({"think": {"max_insertions": 0}})
    usual = [step.token for step in run(60, profile=never)]
    first = next(iter(left.values())).tokens
    assert list(first) == usual[1 : 1 + ALWAYS_THINK.think.watch]


@pytest.mark.usefixtures("anywhere")
def test_the_model_continues_from_the_inserted_text(run, tiny_model, byte_tokenizer):
    steps = run(12, profile=ALWAYS_THINK)
    tokens = PROMPT + [step.token for step in steps]
    logits = tiny_model(mx.array([tokens])).logits[0]
    for step in steps:
        row = np.array(logits[len(PROMPT) + step.index - 1], np.float64)
        expected = row[step.token] - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert step.logprob == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("text", "in_turn"), [(7, [7, 7, 7]), (["A", 7], [" A", 7]), ("Hm.", [" Hm."])]
)
@pytest.mark.usefixtures("anywhere")
def test_thinking_text_may_be_a_token_or_a_list(run, byte_tokenizer, text, in_turn):
    steps = run(90, profile=ALWAYS_THINK.replace({"think": {"text": text}}))
    inserted = [step.token for step in steps if step.origin is Origin.INSERTED]
    expected = [[t] if isinstance(t, int) else byte_tokenizer.encode(t) for t in in_turn]
    assert inserted == list(itertools.chain(*expected)), "no text twice in an answer"


@pytest.mark.usefixtures("anywhere")
def test_a_thinking_token_may_be_a_reserved_one_by_name(run):
    steps = run(20, profile=ALWAYS_THINK.replace({"think": {"text": "<s>"}}))
    inserted = [step.token for step in steps if step.origin is Origin.INSERTED]
    assert inserted[-1:] == [256]


@pytest.mark.usefixtures("anywhere")
def test_a_roll_back_is_told_once_where_an_insertion_begins(run):
    for pipelined in (True, False):
        steps = run(30, profile=ALWAYS_THINK, pipelined=pipelined)
        assert [step.index for step in steps if step.rolled_back] == [1, 1 + len(b" Wait,") + 16]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (258, "258 is outside the vocabulary"),
        (-1, "-1 is outside the vocabulary"),
        (["fine", 999], "999 is outside the vocabulary"),
        ("</s>", "holds the end of the text"),
        (257, "holds the end of the text"),
    ],
)
def test_a_thinking_text_that_cannot_be_used_is_a_profile_error(
    tiny_model, byte_tokenizer, text, message
):
    profile = ALWAYS_THINK.replace({"think": {"text": text}})
    with pytest.raises(ProfileError, match=message):
        next(stream_generate(tiny_model, byte_tokenizer, PROMPT, profile=profile))


@pytest.mark.model
def test_a_thinking_text_without_tokens_is_a_profile_error(demo):
    for text in ("\x04", "<|endoftext|>"):  # no token for that byte; what stands for the unknown
        profile = ALWAYS_THINK.replace({"think": {"text": text}})
        with pytest.raises(ProfileError, match="has no tokens"):
            next(stream_generate(*demo, PROMPT, profile=profile))


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("taken", [1, 7, 30])
@pytest.mark.usefixtures("anywhere")
def test_the_cache_holds_all_committed_tokens_but_the_last(
    tiny_model, byte_tokenizer, pipelined, taken
):
    cache = tiny_model.make_cache()
    stream = stream_generate(
        tiny_model,
        byte_tokenizer,
        PROMPT,
        max_tokens=30,
        seed=3,
        profile=ALWAYS_THINK,
        prompt_cache=cache,
        pipelined=pipelined,
    )
    steps = list(itertools.islice(stream, taken))
    stream.close()
    committed = PROMPT + [step.token for step in steps]
    assert cache[0].offset == len(committed) - 1
    expected = tiny_model(mx.array([committed])).logits[0, -1]
    actual = tiny_model(mx.array([committed[-1:]]), cache).logits[0, -1]
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def test_a_filled_cache_and_a_whole_prompt_give_the_same_steps(run, tiny_model, byte_tokenizer):
    cache = tiny_model.make_cache()
    tiny_model(mx.array([PROMPT[:12]]), cache)
    resumed = stream_generate(
        tiny_model, byte_tokenizer, PROMPT[12:], max_tokens=20, seed=1, prompt_cache=cache
    )
    assert [step.token for step in resumed] == [step.token for step in run(20)]


def test_cancel_stops_before_the_next_token(tiny_model, byte_tokenizer):
    cancel = threading.Event()
    seen = []
    for step in stream_generate(
        tiny_model, byte_tokenizer, PROMPT, max_tokens=30, seed=1, cancel=cancel
    ):
        seen.append(step)
        if len(seen) == 5:
            cancel.set()
    assert len(seen) == 5


def test_cancel_stops_a_prefill(tiny_model, byte_tokenizer):
    cancel = threading.Event()
    cancel.set()
    assert not list(
        stream_generate(tiny_model, byte_tokenizer, PROMPT, max_tokens=30, cancel=cancel)
    )


def test_a_worker_thread_can_own_it_all(byte_tokenizer):
    def work(texts):
        model = make_tiny_model()
        for _ in range(2):
            texts.append(
                generate(model, byte_tokenizer, PROMPT, max_tokens=12, seed=1, top_logprobs=2)
            )

    here, there = [], []
    work(here)
    thread = threading.Thread(target=work, args=(there,))
    thread.start()
    thread.join()
    assert here == there
    assert len(there) == 2


def test_prefill_reports_its_progress(byte_tokenizer):
    model = make_tiny_model(max_position_embeddings=2000)
    reports = []
    stream = stream_generate(
        model,
        byte_tokenizer,
        PROMPT * 40,
        max_tokens=1,
        on_prefill=lambda *report: reports.append(report),
    )
    list(stream)
    total = len(PROMPT) * 40
    assert reports == [(0, total), (256, total), (512, total), (total, total)]


def test_the_end_of_text_is_the_last_step(run, byte_tokenizer):
    freely = run(30)
    end = freely[12].token
    byte_tokenizer._eos_token_ids = {end}
    steps = run(30)
    first = next(i for i, step in enumerate(freely) if step.token == end)
    assert [step.token for step in steps] == [step.token for step in freely[: first + 1]]
    assert [step.finish_reason for step in steps] == [None] * first + ["stop"]
    assert (
        "".join(step.text for step in steps).strip()
        == byte_tokenizer.decode([step.token for step in steps[:-1]]).strip()
    )


def test_length_and_the_context_limit(run, tiny_model):
    assert run(7)[-1].finish_reason == "length"
    room = tiny_model.config.max_position_embeddings - len(PROMPT)
    endless = run(-1)
    assert len(endless) == room
    assert endless[-1].finish_reason == "length"


def test_the_text_is_that_of_the_tokens(run, byte_tokenizer):
    for seed in range(5):
        steps = run(60, seed=seed, temperature=2.0)
        decoded = byte_tokenizer.decode([step.token for step in steps])
        assert "".join(step.text for step in steps).strip() == decoded.strip()


def test_alternatives_are_the_most_probable_tokens(run, tiny_model):
    steps = run(6, top_logprobs=4)
    tokens = PROMPT + [step.token for step in steps]
    logits = np.array(tiny_model(mx.array([tokens])).logits[0], np.float64)
    for step in steps:
        row = logits[len(PROMPT) + step.index - 1]
        logp = row - row.max() - np.log(np.exp(row - row.max()).sum())
        best = np.argsort(-logp)[:4]
        assert [a.token for a in step.top_logprobs] == best.tolist()
        np.testing.assert_allclose([a.logprob for a in step.top_logprobs], logp[best], atol=2e-3)


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
    with pytest.raises(NonFiniteLogitsError, match="damaged"):
        list(stream_generate(model, byte_tokenizer, PROMPT, max_tokens=5))


def test_mistakes_are_named(tiny_model, byte_tokenizer):
    start = lambda **options: list(  # noqa: E731
        stream_generate(tiny_model, byte_tokenizer, options.pop("prompt", PROMPT), **options)
    )
    with pytest.raises(PromptError, match="empty"):
        start(prompt=[])
    with pytest.raises(PromptError, match="empty"):
        start(prompt="")
    for token in (-1, 258, 40_000):
        with pytest.raises(PromptError, match=f"no token {token} in this model, which has 258"):
            start(prompt=[65, token, 66])
    with pytest.raises(ContextLengthError, match=r"300 tokens.*holds 256"):
        start(prompt=[65] * 300)
    with pytest.raises(SamplerError, match=r"no sampler 'magic'.*entropix"):
        start(sampler="magic")
    with pytest.raises(SamplerError, match="greedy sampler takes no temperature"):
        start(sampler="greedy", temperature=0.5)
    with pytest.raises(SamplerError, match="top_p must be a number above 0"):
        start(top_p=0.0)


def test_generate_is_the_text_of_the_stream(run, tiny_model, byte_tokenizer):
    text = "".join(step.text for step in run(15, seed=4))
    assert generate(tiny_model, byte_tokenizer, PROMPT, max_tokens=15, seed=4) == text
