"""Several answers on a tiny model: each is what it is alone, and they share their prompt."""

from dataclasses import replace
from threading import Event

import pytest

from entropix_mlx import Session, Settings, batch_generate, generate, stream_generate
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.answer.selection import Enough
from entropix_mlx.api.generate import stream_answers
from entropix_mlx.api.runner import Runner, further
from entropix_mlx.engine import batch as engine
from entropix_mlx.errors import SettingsError
from entropix_mlx.profiles.profile import Profile
from tests.answer.test_forks import always_branch
from tests.conftest import make_tiny_model

PROMPT = list(b"The quick brown fox")
UNSURE = {"changes": {"answers": {"count": 5}}, "answers": "auto", "budget": 8}
SURE = UNSURE | {"budget": 1}
PLAIN = Settings(seed=3, max_tokens=12, sampler="greedy")


@pytest.fixture
def ask(tiny_model, endless):
    def ask(settings=PLAIN, **options):
        return stream_answers(tiny_model, endless, PROMPT, settings, **options)

    return ask


@pytest.fixture
def prefilled(monkeypatch):
    """Return the numbers of prompt tokens that are computed, chunk by chunk."""
    chunks, read_prompt = [], engine.read_prompt

    def record(model, tokens, cache):
        chunks.append(len(tokens))
        read_prompt(model, tokens, cache)

    monkeypatch.setattr(engine, "read_prompt", record)
    return chunks


def tokens_of(steps):
    return [step.token for step in steps]


def finished(stream):
    several, steps = stream
    for _ in steps:
        pass
    return several


@pytest.mark.parametrize("answers", ["auto", 5])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stop": (" so",), "frequency_penalty": 0.3},
        {"sampler": "entropix", "profile": always_branch(min_gap=4, depth=3, width=3)},
        {"speculation": 3},
    ],
)
def test_each_answer_is_what_it_is_alone(ask, tiny_model, endless, prefilled, answers, more):
    settings = replace(PLAIN, **(UNSURE | {"answers": answers}), **more)
    several = finished(ask(settings))
    assert sum(prefilled) == len(PROMPT) - 1, "the prompt is computed once"
    assert len(several.candidates) == 5
    rule = Profile.load().answers
    for number, candidate in enumerate(several.candidates):
        own = replace(settings if number == 0 else further(settings, rule), answers=1)
        own = replace(own, seed=candidate.seed)
        alone = list(stream_generate(tiny_model, endless, PROMPT, own))
        if candidate.complete:
            assert len(candidate.steps) == len(alone)
        for found, expected in zip(candidate.steps, alone, strict=False):
            assert found.token == expected.token
            assert found.logprob == pytest.approx(expected.logprob, abs=1e-3)
    assert all(" so" not in one.text for one in several.candidates) or "stop" not in more


def test_a_sure_answer_is_the_only_one(ask, tiny_model, endless):
    settings = replace(PLAIN, **SURE)
    several, steps = ask(settings)
    found = list(steps)
    alone = list(stream_generate(tiny_model, endless, PROMPT, PLAIN))
    assert [step for _, step in found] == alone == several.chosen.steps
    assert {number for number, _ in found} == {0}
    assert several.stopped == Enough.SURE
    assert several.forward_tokens == len(alone)


def test_the_first_answer_comes_first_and_whole(ask):
    _, steps = ask(**UNSURE)
    found = [number for number, _ in steps]
    assert found == sorted(found, key=bool)
    assert found.count(0) == PLAIN.max_tokens


def test_cancelled_in_the_middle_all_texts_stay(ask):
    cancel = Event()
    several, steps = ask(answers=4, hooks=Hooks(cancel))
    for count, _ in enumerate(steps):
        if count == 20:
            cancel.set()
    assert several.stopped == Enough.INTERRUPTED
    assert sum(len(one.steps) for one in several.candidates) > 20
    assert several.chosen is several.candidates[0]


def test_a_loop_that_is_left_can_still_be_chosen_from(ask):
    several, steps = ask(**UNSURE)
    for number, step in steps:
        if number == 0 and step.finish_reason:
            break
    steps.close()
    assert several.complete == [several.chosen] == several.candidates[:1]


def test_a_batch_brings_the_chosen_ones(tiny_model, endless, ask, prefilled):
    prompts = [PROMPT, list(b"x = 3;"), list(b"A")]
    settings = [
        replace(PLAIN, **UNSURE),
        PLAIN,
        replace(PLAIN, answers=3, max_tokens=5),
    ]
    done = []
    batch = batch_generate(
        tiny_model, endless, prompts, settings, on_progress=lambda *n: done.append(n)
    )
    steps = {0: [], 1: [], 2: []}
    for index, step in batch:
        steps[index].append(step)
    assert sum(prefilled) == sum(len(prompt) - 1 for prompt in prompts)
    assert done == [(1, 3), (2, 3), (3, 3)]
    for answer in batch.answers:
        assert answer.steps == steps[answer.index]
        assert answer.error is None
    first, plain, last = batch.answers
    assert plain.several is None
    assert (len(first.several.candidates), len(last.several.candidates)) == (5, 3)
    assert first.text == first.several.chosen.text
    alone = finished(ask(settings[0]))
    assert first.text in {one.text for one in alone.candidates}
    streamed = list(stream_generate(tiny_model, endless, PROMPT, settings[0]))
    assert tokens_of(streamed) == tokens_of(alone.chosen.steps)


def test_a_closed_batch_keeps_what_there_is(tiny_model, endless):
    batch = batch_generate(
        tiny_model, endless, [PROMPT, PROMPT], [replace(PLAIN, max_tokens=3), PLAIN], answers=3
    )
    next(iter(batch))
    batch.close()
    one, other = batch.answers
    assert (len(one.steps), one.error) == (3, None)
    assert other.error is not None
    assert other.steps == other.several.candidates[0].steps
    assert len(other.steps) >= 3


@pytest.mark.parametrize("answers", ["auto", 3])
def test_an_answer_that_fails_ends_alone(tiny_model, endless, answers):
    hooks = [Hooks(), Hooks(on_prefill=lambda done, total: 1 / 0)]
    batch = batch_generate(
        tiny_model,
        endless,
        [PROMPT, list(b"x = 3;")],
        PLAIN,
        hooks=hooks,
        **(UNSURE | {"answers": answers}),
    )
    one, other = batch.finish()
    assert one.error is None
    assert isinstance(other.error, ZeroDivisionError)


def test_several_answers_are_no_single_one(tiny_model, endless):
    with pytest.raises(SettingsError):
        stream_answers(tiny_model, endless, PROMPT)
    assert generate(tiny_model, endless, PROMPT, PLAIN, answers=2)


@pytest.mark.parametrize("value", [0, -1, 65, 1.5, True, "many", None])
def test_impossible_numbers_of_answers(value):
    with pytest.raises(SettingsError):
        Settings(answers=value)


def test_a_cached_beginning_is_shared_too(tiny_model, endless):
    cache = tiny_model.make_cache()
    list(stream_generate(tiny_model, endless, PROMPT[:9], max_tokens=1, prompt_cache=cache))
    begun = int(cache[0].offset)
    stream = stream_answers(
        tiny_model, endless, PROMPT[begun:], PLAIN, **UNSURE,
        prompt_cache=cache,
    )  # fmt: skip
    several = finished(stream)
    whole = list(stream_generate(tiny_model, endless, PROMPT, PLAIN))
    assert tokens_of(several.candidates[0].steps) == tokens_of(whole)
    assert int(cache[0].offset) == len(PROMPT)


@pytest.fixture
def session(word_tokenizer):
    model = make_tiny_model(max_position_embeddings=4096)
    settings = replace(PLAIN, **UNSURE, max_tokens=6)
    return Session(model, word_tokenizer, settings)


def test_a_session_keeps_all_answers_and_goes_on_from_the_chosen_one(session):
    steps = list(session.send("Hello"))
    turn = session.conversation.last
    assert turn.answers[0].steps == steps
    assert len(turn.answers) == 5
    assert turn.answer.steps == session.several.chosen.steps
    cached = session.source.cached_tokens
    list(session.send("And then?"))
    assert session.conversation.messages[1]["content"] == turn.answer.text
    assert session.source.cached_tokens > cached
    session.settings = replace(session.settings, answers=1)
    list(session.regenerate())
    assert session.several is None
    assert len(session.conversation.last.answers) == 6


def test_a_sure_session_is_like_any_other(session):
    session.settings = replace(session.settings, **SURE)
    steps = list(session.send("Hello"))
    assert (len(session.conversation.last.answers), session.several.stopped) == (1, Enough.SURE)
    cached = session.source.cached_tokens
    session.settings = replace(session.settings, answers=1)
    session.new()
    assert list(session.send("Hello")) == steps
    assert session.source.cached_tokens == cached


@pytest.mark.parametrize("taken", [1, 3, 6])
def test_a_session_can_be_left_at_any_moment(session, taken):
    steps = session.send("Hello")
    read = [next(steps) for _ in range(taken)]
    session.close()
    assert session.conversation.last.answer.steps == read
    assert list(session.send("And then?"))


def test_a_cancelled_session_has_its_texts(session):
    cancel = Event()
    session.settings = replace(session.settings, answers=3)
    steps = session.send("Hello", cancel=cancel)
    next(steps)
    cancel.set()
    list(steps)
    turn = session.conversation.last
    assert turn.selected == 0
    assert all(answer.steps for answer in turn.answers)
    assert list(session.send("And then?"))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_hundred_prompts_cost_twice_as_much_as_single_answers(
    tiny_model, word_tokenizer, at_once
):
    prompts = [list(f"{number**3} times".encode()) for number in range(100)]
    settings = replace(PLAIN, answers="auto", sampler="temperature", temperature=1.0, max_tokens=9)
    if at_once:
        batch = batch_generate(tiny_model, word_tokenizer, prompts, settings, batch=16)
        found = [answer.several for answer in batch.finish()]
    else:
        runner = Runner(tiny_model, word_tokenizer, size=8)
        found = []
        for prompt in prompts:
            first = runner.add(prompt, runner.resolve(settings))
            while not runner.done(first):
                runner.advance()
            found.append(runner.selection(first))
    alone = sum(several.candidates[0].forward_tokens for several in found)
    times = sum(several.forward_tokens for several in found) / alone
    assert 1.4 < times <= 2.1
    assert {len(several.candidates) for several in found} >= {1, 8}
