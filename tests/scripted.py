"""Answers without a model: positions that follow from the text so far, and who serves requests."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from entropix_mlx.answer.answer import Answer
from entropix_mlx.answer.interventions.forks import Forks, chosen
from entropix_mlx.answer.interventions.retrieval import Retrieval
from entropix_mlx.answer.interventions.thinking import Thinking
from entropix_mlx.answer.position import Position
from entropix_mlx.answer.requests import NOTHING, TEXT, Advance, Ask, Keep, Split
from entropix_mlx.answer.writer import Writer
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Decision, Metrics, Strategy
from tests.conftest import make_byte_tokenizer

EOS = 257
WORDS = " The sky is blue. We all see it now, and then. It is so."
TOKENIZER = make_byte_tokenizer(WORDS + " Wait Hm")
PROMPT = TOKENIZER.encode("Once upon a time")
PROSE = tuple(TOKENIZER.encode(WORDS))
"""Tokens that mostly follow one another, so that there are sentences."""
STRATEGIES = [s for s in Strategy if s is not Strategy.THINK_SAMPLE]


@dataclass(frozen=True)
class ScriptedDistribution:
    """What might stand after a text, made up from its tokens and a seed."""

    text: tuple[int, ...]
    seed: int
    letters: Sequence[int]

    def logprobs(self, tokens):
        return [-token / 50 for token in tokens]

    def openings(self, count):
        chance = random.Random(f"openings {self.text} {self.seed}")
        return chance.sample(sorted(set(self.letters)), min(count, len(set(self.letters))))


def scripted(text, seed, letters):
    """Return the position after a text, always the same for the same text."""
    chance = random.Random(f"{tuple(text)} {seed}")
    metrics = Metrics(*(chance.uniform(0, 5) for _ in Metrics._fields))
    strategy = chance.choice(STRATEGIES)
    usual = letters[(len(text) - len(PROMPT)) % len(letters)]
    token = usual if letters is PROSE and chance.random() < 0.95 else chance.choice(letters)
    token = EOS if chance.random() < 0.01 else token
    decision = Decision(strategy, 0.7, 0.9, 27, 0.03, metrics)
    distribution = ScriptedDistribution(tuple(text), seed, letters)
    return Position(decision, token, -chance.uniform(0, 4), distribution=distribution)


@dataclass
class Host:
    """Serves requests as a slot does, and checks that each may come where it comes."""

    chance: random.Random
    script: tuple[int, Sequence[int]]
    cached: list[int] = field(default_factory=lambda: PROMPT[:-1])
    branches: list[list[int]] | None = None
    asked: int = 0
    computed: list[tuple[int, ...]] = field(default_factory=list)
    """Every text whose next position was asked for."""

    def serve(self, request):
        match request:
            case Advance(tokens) if self.branches is None:
                self.cached.append(tokens[TEXT])
                return self.positions([self.cached])
            case Advance(tokens):
                for number, token in tokens.items():
                    self.branches[number].append(token)
                return self.positions([self.cached + self.branches[n] for n in tokens])
            case Split(count):
                assert self.branches is None
                self.branches = [[] for _ in range(count)]
            case Keep(number, tokens):
                assert self.branches[number][: len(tokens)] == list(tokens)
                self.cached += tokens
                self.branches = None
            case Ask(fork):
                self.asked += 1
                return chosen(fork, self.chance.randrange(len(fork.branches)))
        return None

    def positions(self, texts):
        self.computed += map(tuple, texts)
        return [scripted(text, *self.script) for text in texts]


@dataclass
class Cancel:
    """Becomes true after it was asked so often."""

    after: int
    asked: int = 0

    def __call__(self):
        self.asked += 1
        return self.asked > self.after

    @property
    def happened(self):
        return self.asked > self.after


def make_profile(chance):
    think = {
        "text": [" Wait,", " Hm.", "\n"],
        "place": chance.choice(["sentence", "word", "word"]),
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
        "copy_length": chance.choice([0, 2, 4]),
    }
    return changed(Profile.load(), think=think, branch=fork)


def changed(profile, **sections):
    """Return a profile with other fields in some sections, unchecked: `replace` takes longer."""
    own = {name: replace(getattr(profile, name), **sections[name]) for name in sections}
    return replace(profile, **own)


@dataclass
class Course:
    """One answer, and all that its course depends on."""

    profile: Profile
    host: Host
    limit: int
    stops: tuple[str, ...] = ()
    cancel: Cancel = field(default_factory=lambda: Cancel(10**9))
    forced: tuple[int, ...] = ()
    asks: bool = False
    room: int | None = None
    retrieve: object = None

    def run(self):
        """Run the answer to its end; return its steps, taken from it at random moments."""
        answer = self._answer()
        requests, steps, sent = answer.live(PROMPT[-1], self.forced), [], None
        while True:
            try:
                request = requests.send(sent)
            except StopIteration:
                return [*steps, *answer.steps]
            if isinstance(request, Advance) and answer.room == 1 and self.host.branches is None:
                assert request.then == NOTHING, "nobody needs what follows the last token"
            sent = self.host.serve(request)
            if self.host.chance.random() < 0.4:
                steps += answer.steps
                answer.steps.clear()

    def _answer(self):
        forks = Forks(self.profile.branch, TOKENIZER, prompt=PROMPT, asks=self.asks)
        interventions = [Thinking(self.profile.think, TOKENIZER, TOKENIZER.vocab_size), forks]
        if self.retrieve is not None:
            rule = self.profile.notes
            interventions.insert(0, Retrieval(rule, TOKENIZER, self.retrieve, forks.due))
        return Answer(
            Writer(TOKENIZER, self.profile.position_score, self.limit, self.stops),
            interventions,
            context_room=self.room or self.limit,
            cancelled=self.cancel,
        )
