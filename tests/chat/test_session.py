"""A conversation on a tiny model: what it keeps, what it computes again, how it can be left."""

import itertools
import json
import random
from dataclasses import replace
from threading import Event

import numpy as np
import pytest

from entropix_mlx import Session, Settings
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.errors import (
    ContextLengthError,
    ProfileError,
    PromptError,
    SamplerError,
    SessionError,
    TraceError,
)
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Origin
from entropix_mlx.traces.trace import TraceFolder, TraceWriter
from tests.conftest import make_tiny_model

pytestmark = pytest.mark.slow

INTERVENING = Profile.load().replace(
    {
        "thresholds": {
            "low_entropy": -1,
            "think_min_entropy": 1.0,
            "think_max_varentropy": 2.0,
            "branch_min_varentropy": 2.0,
        },
        "branch": {"min_gap": 2, "depth": 4, "width": 3},
        "think": {"min_gap": 5},
    }
)
SETTINGS = Settings(max_tokens=8, seed=5, profile=INTERVENING)


@pytest.fixture(scope="module")
def roomy_model():
    return make_tiny_model(max_position_embeddings=4096)


@pytest.fixture
def make(roomy_model, word_tokenizer):
    def make(settings=SETTINGS, model=roomy_model, **options):
        return Session(model, word_tokenizer, settings, **options)

    return make


@pytest.fixture
def session(make):
    """A session with one answer, of eight tokens, to "Hello"."""
    made = make()
    list(made.send("Hello"))
    return made


def text_of(steps):
    return "".join(step.text for step in steps)


def questions(session):
    return [turn.question for turn in session.conversation.turns]


def alternatives(session):
    """What comes next after one more question, as the whole vocabulary's log probabilities."""
    session.settings = Settings(max_tokens=1, sampler="greedy", top_logprobs=258)
    (step,) = session.send("And?")
    del session.conversation.turns[-1]
    return {a.token: a.logprob for a in step.top_logprobs}


def check_cache(session, make, tolerance=1e-4):
    """Check that what is cached is the conversation: compare with a session without a cache."""
    session.close()
    fresh = make(system_prompt=session.conversation.system_prompt)
    fresh.conversation = session.conversation
    assert alternatives(session) == pytest.approx(alternatives(fresh), abs=tolerance)


def act(session, rng):
    """Do something at random, and perhaps not to its end."""
    turns = session.conversation.turns
    actions = ["send"]
    if turns:
        actions += ["send", "regenerate", "edit"]
        if turns[-1].answer.steps:
            actions += ["fork", "fork", "select"]
    action = rng.choice(actions)
    word = "".join(rng.choices("abc é\n", k=rng.randint(1, 9))) + "?"
    if action == "send":
        steps = session.send(word)
    elif action == "regenerate":
        steps = session.regenerate()
    elif action == "edit":
        steps = session.send(word, rng.randrange(len(turns)))
    elif action == "fork":
        steps = session.fork(rng.randrange(len(turns[-1].answer.steps)), rng.randrange(256))
    else:
        session.close()
        session.select(rng.randrange(len(turns[-1].answers)))
        return
    manner = rng.choice(["whole", "whole", "left", "closed", "cancelled", "never begun"])
    if manner == "never begun":
        return
    if manner == "whole":
        list(steps)
        return
    list(itertools.islice(steps, rng.randint(0, 6)))
    if manner == "closed":
        session.close()
    elif manner == "cancelled":
        session.cancel()
        assert len(list(steps)) <= 1


@pytest.mark.parametrize("block", range(2))
def test_whatever_was_done_the_next_logits_are_those_of_a_fresh_session(make, block):
    for seed in range(20 * block, 20 * block + 20):
        rng = random.Random(seed)
        session = make()
        for _ in range(rng.randint(2, 6)):
            act(session, rng)
        check_cache(session, make)


def test_only_what_is_new_is_computed(make):
    computed = []
    session = make(hooks=Hooks(on_prefill=lambda done, total: computed.append(total)))
    list(session.send("A question of some length, so that there is something to keep."))
    session.conversation.turns[-1].answers[0].steps.clear()
    computed.clear()
    list(session.send("Short?"))
    assert max(computed) < 40
    computed.clear()
    list(session.regenerate())
    assert max(computed) <= 2
    computed.clear()
    list(session.fork(4, 70))
    assert max(computed) <= 2


def test_regenerating_differs_and_a_seed_repeats(make):
    settings = replace(SETTINGS, changes={"think": {"max_insertions": 0}})

    def answers():
        session = make(settings)
        list(session.send("Hello"))
        list(session.regenerate())
        return [answer.text for answer in session.conversation.turns[0].answers]

    assert answers() == answers()
    assert len(set(answers())) == 2
    session = make(Settings(max_tokens=12))  # without a seed
    list(session.send("Hi"))
    assert len({text_of(session.regenerate()) for _ in range(4)}) > 1


def test_changed_settings_are_tried_with_the_same_seed(make):
    session = make(replace(SETTINGS, seed=7))
    list(session.send("Hello"))
    list(session.regenerate())
    session.settings = replace(SETTINGS, seed=7, temperature=0.5)
    list(session.regenerate())
    list(session.regenerate())
    session.settings = replace(SETTINGS, seed=40)
    list(session.regenerate())
    assert [answer.seed for answer in session.conversation.turns[0].answers] == [7, 8, 8, 10, 44]


def test_a_fork_keeps_what_came_before_and_the_old_answer(make):
    session = make(Settings(max_tokens=20, seed=2, profile=INTERVENING))
    old = list(session.send("Hello"))
    new = list(session.fork(np.int64(6), [np.uint16(65), 66]))
    assert [step.index for step in new] == list(range(6, 26))
    assert [step.token for step in new[:2]] == [65, 66]
    assert [step.origin is Origin.CHOSEN for step in new[:3]] == [True, True, False]
    turn = session.conversation.turns[0]
    assert [answer.steps for answer in turn.answers] == [old, old[:6] + new]
    assert turn.selected == 1
    session.select(0)
    assert session.conversation.messages[-1]["content"] == text_of(old)
    times = [step.time for step in turn.answers[1].steps]
    assert times == sorted(times)


@pytest.mark.parametrize("seed", range(1, 3))
def test_a_fork_with_the_same_token_is_the_same_answer(roomy_model, sentences, seed):
    """The limits of interventions, too, go on where they were."""
    settings = Settings(
        max_tokens=60, seed=seed, profile=INTERVENING, changes={"branch": {"max_branches": 3}}
    )
    session = Session(roomy_model, sentences, settings)
    steps = list(session.send("Hello"))
    sampled = [s for s in steps if s.origin is Origin.SAMPLED]
    assert len(sampled) < len(steps)
    for step in sampled[::-12]:
        again = list(session.fork(step.index, step.token))[: len(steps) - step.index]
        assert [s.token for s in again] == [s.token for s in steps[step.index :]]
        assert [s.origin for s in again[1:]] == [s.origin for s in steps[step.index + 1 :]]
        session.select(0)


@pytest.mark.parametrize("begin", [Session.regenerate, lambda session: session.fork(3, 65)])
def test_an_answer_without_a_token_makes_way_for_the_one_before(session, begin):
    list(session.regenerate())
    session.select(0)
    steps = begin(session)
    session.cancel()
    assert list(itertools.islice(steps, 1)) == []
    session.close()
    assert session.conversation.last.selected == 0
    assert len(session.conversation.last.answers) == 2
    assert len(list(session.send("Bye"))) == 8, "a cancel does not outlive its answer"


@pytest.mark.parametrize(
    "begin",
    [
        lambda session, cancel: session.send("More?", cancel=cancel),
        lambda session, cancel: session.send("More?", 0, cancel=cancel),
        lambda session, cancel: session.regenerate(cancel=cancel),
        lambda session, cancel: session.fork(3, 65, cancel=cancel),
    ],
)
def test_a_cancel_that_comes_first_is_not_lost(session, begin):
    """Another thread may cancel while the session still encodes the question."""
    cancel = Event()
    cancel.set()
    assert list(begin(session, cancel)) == []
    assert len(list(begin(session, Event()))) > 1, "each answer has a token of its own"


def test_a_token_stops_its_own_answer_only(make):
    session = make()
    session.cancel()  # there is nothing to cancel
    first, second = Event(), Event()
    list(session.send("Hello", cancel=first))
    steps = session.send("Bye", cancel=second)
    next(steps)
    first.set()
    next(steps)
    session.cancel()
    assert second.is_set()
    assert list(steps) == []
    running = session.send("And?")
    first_step = next(running)
    list(session.send("Bye"))
    assert list(running) == [], "a new question ends the running answer"
    assert session.conversation.messages[-3]["content"] == first_step.text


def test_a_cancel_stops_the_prefill_between_two_chunks(make, monkeypatch):
    monkeypatch.setattr("entropix_mlx.engine.batch.prefill_chunk", lambda: 256)
    cancel = Event()
    seen = []

    def on_prefill(done, total):
        seen.append(done)
        if done:
            cancel.set()

    session = make(hooks=Hooks(on_prefill=on_prefill))
    assert list(session.send("x" * 1000, cancel=cancel)) == []
    assert 0 < seen[-1] < 1000
    assert session.source.cached_tokens == 0


def test_a_full_context_drops_the_oldest_turns(word_tokenizer):
    notices = []
    session = Session(
        make_tiny_model(),
        word_tokenizer,
        Settings(max_tokens=20, seed=1),
        system_prompt="Be kind.",
    )
    session.on_drop = notices.append
    for number in range(12):
        assert list(session.send(f"This is question {number}?"))
    assert notices == sorted(set(notices))
    assert len(notices) >= 2
    assert len(session.conversation.messages) == 25, "nothing is lost of the conversation itself"
    shown = [message["content"] for message in session.conversation.prompt_messages]
    assert shown[0] == "Be kind."
    assert shown[1].startswith("This is question ")
    assert shown[1] != "This is question 0?"
    assert shown[-1] == "This is question 11?"
    assert len(shown) == len(session.conversation.messages) - 2 * session.conversation.dropped - 1
    list(session.send("Anew?", 0))
    assert session.conversation.dropped == 0


def test_a_trace_that_cannot_be_written_leaves_a_session_that_can_be_used(
    make, tmp_path, monkeypatch
):
    session = make(traces=TraceFolder(tmp_path, "tiny"))
    list(session.send("Hello"))
    add = TraceWriter.add

    def fail_at_the_third(writer, step):
        if step.index == 3:
            raise TraceError("the disk is full")
        add(writer, step)

    monkeypatch.setattr(TraceWriter, "add", fail_at_the_third)
    with pytest.raises(TraceError):
        list(session.send("Bye"))
    assert len(session.conversation.turns[1].answer.steps) == 3
    monkeypatch.undo()
    check_cache(session, make)


def test_save_and_load(make, tmp_path):
    session = make(system_prompt="Be brief.")
    list(session.send("One? é"))
    list(session.regenerate())
    session.select(0)
    session.save(tmp_path / "talk.json")
    other = make()
    other.load(tmp_path / "talk.json")
    other.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "talk.json").read_text()
    assert other.conversation.messages == session.conversation.messages
    assert other.conversation.last.selected == 0
    check_cache(other, make)


SAVED = {"format": "entropix conversation", "version": 1, "system_prompt": None}
TURN = {"question": "x", "selected": 0, "answers": ["y"]}
DAMAGES = (
    *({"version": 9}, {"dropped": -1}, {"dropped": float("inf")}, {"turns": [TURN]}),
    {"turns": [TURN | {"answers": [], "selected": 3}]},
)


@pytest.mark.parametrize(
    "content",
    [
        *(None, "{", "[]", "[" * 100_000, json.dumps(SAVED)),
        *(json.dumps(SAVED | {"dropped": 0, "turns": []} | changes) for changes in DAMAGES),
    ],
    ids=range(10),
)
def test_a_file_that_is_no_conversation(session, tmp_path, content):
    file, before = tmp_path / "talk.json", session.conversation.messages
    if content is not None:
        file.write_text(content)
    with pytest.raises(SessionError, match=r"talk\.json"):
        session.load(file)
    assert session.conversation.messages == before


def test_an_answer_of_another_model_cannot_be_forked(session, make, tmp_path):
    """Its tokens mean something else here, or nothing: MLX would read beyond the embedding."""
    session.save(tmp_path / "talk.json")
    other = make(model=make_tiny_model(hidden_size=64, max_position_embeddings=4096))
    other.load(tmp_path / "talk.json")
    with pytest.raises(SessionError):
        other.fork(3, 65)
    list(other.regenerate())
    assert list(other.fork(3, 65))
    again = make()
    again.load(tmp_path / "talk.json")
    assert list(again.fork(3, 65))


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("text", lambda s: s.send(5)),
        ("turn", lambda s: s.send("x", 0.0)),
        ("cancel", lambda s: s.send("x", cancel=True)),
        ("cancel", lambda s: s.regenerate(cancel=1)),
        ("cancel", lambda s: s.fork(0, 1, cancel=1)),
        ("step_index", lambda s: s.fork(1.5, 1)),
        ("step_index", lambda s: s.fork(True, 1)),
        ("token", lambda s: s.fork(1, "a")),
        ("answer", lambda s: s.select(None)),
        ("system_prompt", lambda s: s.instruct(["x"])),
        ("system_prompt", lambda _: Session(None, None, system_prompt=1)),
        ("settings", lambda _: Session(None, None, {"max_tokens": 3})),
    ],
)
def test_a_wrong_type_is_named_and_changes_nothing(make, name, action):
    session = make(Settings(max_tokens=2, sampler="greedy"))
    steps = session.send("Hello")
    next(steps)
    with pytest.raises(TypeError, match=name):
        action(session)
    assert len(list(steps)) == 1, "the running answer goes on"
    assert len(session.conversation.turns[0].answers) == 1


def test_nothing_can_be_changed_before_the_first_question(make):
    session = make()
    for action in (
        *(Session.regenerate, lambda s: s.fork(0, 1), lambda s: s.select(0)),
        lambda s: s.send("x", 0),
    ):
        with pytest.raises(SessionError):
            action(session)


FOREIGN = {"profile": INTERVENING.replace({"think": {"text": 9999}})}


@pytest.mark.parametrize(
    ("error", "settings", "action"),
    [
        (PromptError, {}, lambda s: s.send(" ")),
        (ContextLengthError, {}, lambda s: s.send("x" * 5000)),
        (SessionError, {}, lambda s: s.send("x", 1)),
        (SessionError, {}, lambda s: s.fork(8, 1)),
        (SessionError, {}, lambda s: s.fork(0, 258)),
        (SessionError, {}, lambda s: s.fork(0, [])),
        (SessionError, {}, lambda s: s.select(1)),
        (SamplerError, {"sampler": "magic"}, lambda s: s.send("Hi")),
        (ProfileError, {"profile": "absent"}, Session.regenerate),
        (ProfileError, FOREIGN, lambda s: s.send("x", 0)),
        (ProfileError, FOREIGN, Session.regenerate),
        (ProfileError, FOREIGN, lambda s: s.fork(3, 65)),
    ],
)
def test_a_mistake_changes_nothing(session, error, settings, action):
    session.settings = replace(SETTINGS, **settings)
    before = session.conversation.messages
    with pytest.raises(error):
        action(session)
    assert session.conversation.messages == before
    assert len(session.conversation.last.answers) == 1
    session.settings = SETTINGS
    assert list(session.send("Still there?"))


def test_a_fork_that_does_not_fit_changes_nothing(make, tmp_path):
    session = make(Settings(max_tokens=100, sampler="min_p", seed=1))
    list(session.send("Hello"))
    small = make(model=make_tiny_model(max_position_embeddings=64))
    session.conversation.last.answer.model = None  # of a file that does not say
    small.resume(session.conversation)
    with pytest.raises(ContextLengthError):
        small.fork(90, 65)
    assert len(small.conversation.last.answers) == 1


@pytest.mark.parametrize("start", [1, 3, 5])
def test_a_stop_string_leaves_the_conversation_and_the_cache(make, start):
    whole = text_of(make().send("Why?"))
    stop = whole[start : start + 2]
    session = make(replace(SETTINGS, stop=(stop,)))
    steps = list(session.send("Why?"))
    assert steps[-1].finish_reason == "stop"
    assert session.conversation.messages[-1]["content"] == whole[: whole.index(stop)]
    assert session.source.cached_tokens <= session.conversation.context_used
    check_cache(session, make)
