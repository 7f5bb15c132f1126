"""Random courses of an answer, run without a model: no token is lost, doubled or out of order.

What a model would say is made up from the text so far, so that the same text always goes on alike.
"""

import math
import random
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from entropix_mlx.answer.answer import Answer
from entropix_mlx.answer.interventions.forks import Branching, chosen
from entropix_mlx.answer.interventions.thinking import Thinking
from entropix_mlx.answer.position import Reading
from entropix_mlx.answer.requests import (
    Ask,
    Follow,
    Keep,
    Read,
    Roll,
    Split,
    Unread,
)
from entropix_mlx.answer.side_texts import without_reads
from entropix_mlx.answer.writer import Writer
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import ChosenBy, Decision, Metrics, Origin, Strategy
from tests.conftest import make_byte_tokenizer

EOS = 257
PROMPT = list(b"Once upon a time")
STRATEGIES = [s for s in Strategy if s is not Strategy.THINK_SAMPLE]
TOKENIZER = make_byte_tokenizer()


@dataclass(frozen=True)
class Scripted:
    """A position whose reading follows from the tokens before it."""

    text: tuple[int, ...]
    seed: int
    letters: bytes

    @property
    def reading(self) -> Reading:
        chance = random.Random(f"{self.text} {self.seed}")
        metrics = Metrics(*(chance.uniform(0, 5) for _ in Metrics._fields))
        strategy = chance.choice(STRATEGIES)
        token = EOS if chance.random() < 0.01 else chance.choice(self.letters)
        decision = Decision(strategy, 0.7, 0.9, 27, 0.03, metrics)
        return Reading(decision, token, -chance.uniform(0, 4), ())

    def given(self, tokens):
        return [self.reading._replace(token=token, logprob=-token / 50) for token in tokens]

    def openings(self, count):
        chance = random.Random(f"openings {self.text} {self.seed}")
        return chance.sample(sorted(set(self.letters)), min(count, len(set(self.letters))))


@dataclass
class Host:
    """Serves wants as a scheduler does, and checks that each may be wanted."""

    chance: random.Random
    script: tuple[int, bytes]
    cached: list[int] = field(default_factory=lambda: PROMPT[:-1])
    branches: list[list[int]] | None = None
    asked: int = 0

    def at(self, text):
        return Scripted(tuple(text), *self.script)

    def serve(self, want):
        match want:
            case Follow(token):
                assert self.branches is None
                self.cached.append(token)
                return self.at(self.cached)
            case Split(count):
                assert self.branches is None
                self.branches = [[] for _ in range(count)]
            case Roll(numbers, tokens):
                for number, token in zip(numbers, tokens, strict=True):
                    self.branches[number].append(token)
                return [self.at(self.cached + self.branches[number]) for number in numbers]
            case Unread(length, numbers):
                for text in [self.branches[number] for number in numbers] or [self.cached]:
                    del text[-length:]
            case Keep(number, tokens):
                assert self.branches[number][: len(tokens)] == list(tokens)
                self.cached += tokens
                self.branches = None
            case Ask(fork):
                self.asked += 1
                return chosen(fork, self.chance.randrange(len(fork.branches)))
        return None


def a_profile(chance):
    think = {
        "text": [" Wait,", " Hm.", "\n"],
        "max_insertions": chance.choice([0, 1, 3]),
        "min_gap": chance.choice([1, 4]),
        "wait": chance.choice([0, 5]),
        "watch": chance.choice([0, 1, 5]),
        "loop_length": chance.choice([0, 2, 3]),
        "least_gain": chance.choice([-math.inf, 0.0]),
    }
    fork = {
        "width": chance.choice([1, 2, 4]),
        "depth": chance.choice([1, 2, 6]),
        "max_branches": chance.choice([0, 1, 50]),
        "min_gap": chance.choice([0, 3]),
        "ask_margin": chance.choice([0.0, 0.2, 100.0]),
        "margin": chance.choice([0.0, 0.5]),
    }
    return Profile.load().replace({"think": think, "branch": fork})


@dataclass
class Cancel:
    """Becomes true after it was asked so often."""

    after: int
    asked: int = 0

    def __call__(self):
        self.asked += 1
        return self.asked > self.after


def an_answer(seed):
    """Return an answer, its life, and what serves it, all made from a seed."""
    chance = random.Random(seed)
    profile = a_profile(chance)
    letters = chance.choice([b"abc", b"ab. ", b"the sky is blue. ", bytes(range(97, 123))])
    stops = chance.choice([(), (), ("abc",), ("b", "ca"), ("zq", "is b"), (". ",)])
    limit = chance.choice([1, 2, 7, 40])
    cancel = Cancel(chance.choice([10**9, 10**9, 1, 5, 30]))
    forced = tuple(chance.choice(letters) for _ in range(chance.choice([0, 0, 1, 3])))
    answer = Answer(
        Writer(TOKENIZER, profile.position_score, limit, stops),
        Thinking(profile.think, TOKENIZER, 258),
        Branching(profile.branch, TOKENIZER),
        before=PROMPT,
        context_room=chance.choice([limit, limit + 3, 500]),
        asks=chance.random() < 0.5,
        cancelled=cancel,
    )
    host = Host(chance, (seed % 7, letters))
    return answer, answer.live(PROMPT[-1], forced), host, profile, stops, limit, cancel, forced


def run(life, host, answer):
    """Run a life to its end; return its steps, taken from the answer at random moments."""
    steps, sent = [], None
    while True:
        try:
            want = life.send(sent)
        except StopIteration:
            return [*steps, *answer.steps]
        sent = host.serve(want)
        if host.chance.random() < 0.4:
            steps += answer.steps
            answer.steps.clear()


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("block", range(20))
def test_no_step_is_lost_or_doubled_in_any_course(block):
    for seed in range(150 * block, 150 * (block + 1)):
        answer, life, host, profile, stops, limit, cancel, forced = an_answer(seed)
        steps = run(life, host, answer)
        check_steps(steps, limit, cancel.asked > cancel.after)
        check_cache(host, steps)
        check_interventions(steps, profile, forced)
        check_text(steps, stops)


def check_steps(steps, limit, cancelled):
    assert [step.index for step in steps] == list(range(len(steps)))
    assert len(steps) <= limit
    assert all(step.finish_reason is None for step in steps[:-1])
    if not cancelled:
        last = steps[-1]
        assert last.finish_reason in ("stop", "length")
        assert (last.finish_reason == "length") == (len(steps) == limit and last.token != EOS) or (
            last.finish_reason == "stop"
        )


def check_cache(host, steps):
    """What was followed is the text: the whole of it, or all but its last token."""
    text = PROMPT + [step.token for step in steps]
    assert host.cached in (text, text[:-1])
    assert host.branches is None or not steps or steps[-1].finish_reason is None


def check_interventions(steps, profile, forced):
    assert [s.token for s in steps[: len(forced)]] == list(forced)[: len(steps)]
    forks = [step.index for step in steps if step.fork]
    assert len(forks) <= profile.branch.max_branches
    for step in steps:
        if step.fork is not None:
            winner = step.fork.branches[step.fork.winner].tokens
            there = steps[step.index : step.index + len(winner)]
            assert [s.token for s in there] == list(winner)[: len(there)]
            by_user = step.fork.chosen_by is ChosenBy.USER
            assert all(s.origin is (Origin.CHOSEN if by_user else Origin.BRANCH) for s in there)
    inserted = [step.index for step in steps if step.origin is Origin.INSERTED]
    begins = [index for index in inserted if index - 1 not in inserted]
    dropped = [step for step in steps if step.dropped]
    tried = [step.index for step in dropped if step.dropped.origin is Origin.INSERTED]
    assert not any(steps[index].rolled_back for index in tried), "the draw was put back"
    assert len(begins) + len(tried) <= profile.think.max_insertions
    for index in begins:
        assert 0 <= index - steps[index].triggered_at <= profile.think.wait
        assert all(step.triggered_at is None for step in steps[index + 1 : index + 3])
    covered = sorted([*inserted, *tried])
    assert all(b - a == 1 or b - a > profile.think.min_gap for a, b in pairwise(covered))
    starts = [s.index for s in steps if s.rolled_back]
    assert set(starts) == set(begins) | set(forks) | ({0} if forced and steps else set())


def check_text(steps, stops):
    shown = "".join(step.text for step in steps)
    ends = [step.token for step in steps if step.token != EOS]
    whole = TOKENIZER.decode(ends)
    if steps and steps[-1].finish_reason is not None:
        found = [whole.find(stop) for stop in stops if stop in whole]
        expected = whole[: min(found)] if found else whole
        assert shown.strip() == expected.strip()
        assert bool(found) <= (steps[-1].finish_reason == "stop")
    assert not any(stop in shown for stop in stops)


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("seed", range(100))
def test_a_side_text_leaves_no_trace(seed):
    """The same life, with texts read after the rollouts and after the text, has the same steps."""
    answer, life, host, *_ = an_answer(seed)
    plain = run(life, host, answer)
    answer, life, host, *_ = an_answer(seed)
    read = run(without_reads(reading_on_the_way(life)), host, answer)
    tell = [replace(step, time=0.0) for step in read]
    if host.asked == 0:  # whoever chooses at random chooses otherwise after other draws
        assert [s.token for s in tell] == [s.token for s in plain][: len(tell)]


def reading_on_the_way(life):
    sent, branches, before = None, 0, None
    while True:
        try:
            want = life.send(sent)
        except StopIteration:
            return
        if isinstance(want, Split):
            branches = want.branches
        if isinstance(want, Keep):
            after = tuple(range(97, 97 + branches))
            assert len((yield Read((65, 66), after))) == branches
        sent = yield want
        if isinstance(want, Follow):
            position = yield Read((65, 66, 67))
            assert position.text[-3:] == (65, 66, 67)
            before = sent.text
            assert position.text[:-3] == before
