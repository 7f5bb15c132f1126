"""Thresholds that learn a model: what is counted, when they are offered, and that they fit."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from entropix_mlx import Profile, Settings, batch_generate, stream_generate
from entropix_mlx.api.learned import ENOUGH, TokenCounts, learn
from entropix_mlx.chat.local import Session
from entropix_mlx.errors import ProfileError
from entropix_mlx.profiles.profile import profile_for
from entropix_mlx.samplers.registry import make_sampler
from entropix_mlx.step import Strategy
from tests.conftest import make_tiny_model

STRATEGIES = set(Strategy) - {Strategy.THINK, Strategy.SAMPLE}


@pytest.fixture
def model():
    return make_tiny_model()


def answer(model, tokenizer, seed=0, prompts=12, **options):
    asked = [[number + 3 * place for place in range(12)] for number in range(prompts)]
    batch = batch_generate(model, tokenizer, asked, max_tokens=64, seed=seed, **options)
    return [step for answer in batch.finish() for step in answer.steps]


@pytest.fixture(scope="module")
def measured(byte_tokenizer):
    return answer(make_tiny_model(), byte_tokenizer)


@pytest.fixture
def counts(model, measured):
    found = learn(model)
    published = SimpleNamespace(resolved=SimpleNamespace(sampler=make_sampler()))
    found.add((published, step) for step in measured)
    return found


def test_every_strategy_of_the_thresholds_fires(model, byte_tokenizer, counts):
    steps = answer(model, byte_tokenizer, seed=1, profile=counts.profile("tiny"))
    shares = {name: n / len(steps) for name, n in Counter(s.strategy for s in steps).items()}
    assert shares.keys() == STRATEGIES
    assert all(0.005 <= share <= 0.6 for share in shares.values()), shares


def test_a_file_holds_a_bounded_number_of_counts_and_no_text(counts):
    rows = json.loads(counts.file.read_text())
    assert ENOUGH <= counts.tokens == sum(row[-1] for row in rows) < ENOUGH + 64
    assert all(type(number) is int for row in rows for number in row)
    assert counts.file.stat().st_size < 12_000


def test_nothing_changes_before_the_thresholds_are_accepted(model, byte_tokenizer, request):
    before = [step.to_dict() | {"time": 0} for step in answer(model, byte_tokenizer, prompts=2)]
    request.getfixturevalue("counts")
    after = [step.to_dict() | {"time": 0} for step in answer(model, byte_tokenizer, prompts=2)]
    assert after == before
    assert profile_for(model.config) == Profile.load()


def test_accepted_thresholds_are_the_profile_of_the_model(model, counts):
    tokens = counts.tokens
    path = counts.accept("Tiny")
    profile = profile_for(model.config)
    assert (profile, profile.calibration["tokens"]) == (Profile.load(path), tokens)
    assert profile.think.max_insertions == profile.branch.max_branches == 0
    assert not counts.file.exists()
    assert learn(model) is None
    with pytest.raises(ProfileError):
        TokenCounts(model.config).accept("Tiny")


def test_tokens_of_other_samplers_and_profiles_are_not_counted(model, byte_tokenizer):
    counts = learn(model)
    calibrated = Profile.load().replace({"calibration": {"model": "other"}})
    for options in ({"sampler": "greedy"}, {"profile": calibrated}):
        list(stream_generate(model, byte_tokenizer, [1, 2], max_tokens=8, **options))
    assert counts.tokens == 0
    assert not counts.file.exists()


def test_a_model_is_learned_over_several_processes(model, byte_tokenizer):
    first, second = learn(model), TokenCounts(model.config)
    steps = answer(model, byte_tokenizer, prompts=3)
    assert first.tokens == len(steps)
    learned = learn(model)
    answer(model, byte_tokenizer, prompts=3)
    assert learned.tokens == TokenCounts(model.config).tokens == 2 * first.tokens
    assert second.tokens == 0


@pytest.mark.parametrize("damage", ["", "[[1, 2]]", '{"a": 1}', "[[1, 2, 3, 4, null]]", "\udcff"])
def test_a_damaged_file_counts_nothing(model, damage):
    file = TokenCounts(model.config).file
    file.parent.mkdir(parents=True)
    file.write_bytes(damage.encode("utf-8", "surrogateescape"))
    assert TokenCounts(model.config).tokens == 0


def test_where_nothing_can_be_written_answers_go_on(model, byte_tokenizer):
    learn(model)
    model.counts.file.parent.parent.write_text("a file in place of the folder")
    assert len(answer(model, byte_tokenizer, prompts=2)) > 2


def test_a_chat_uses_them_from_the_next_answer_on(model, byte_tokenizer, counts, monkeypatch):
    monkeypatch.setattr(
        "entropix_mlx.chat.local.conversation_prompt", lambda *_: list(b"Hi there, how are you?")
    )
    session = Session(model, byte_tokenizer, Settings(max_tokens=4, seed=0))
    assert session.offers_thresholds
    assert session.profile == Profile.load()
    session.accept_thresholds()
    assert not session.offers_thresholds
    assert session.profile.calibration["tokens"] >= ENOUGH
    assert list(session.send("Hi"))
