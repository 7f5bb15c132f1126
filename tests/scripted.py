"""Answers without a model: rows that follow from the text so far, and who serves a sequence."""

import random
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from types import SimpleNamespace

from entropix_mlx.answer.forks import ForkTrial
from entropix_mlx.engine.sequence import Sequence
from entropix_mlx.samplers.row import Row
from entropix_mlx.settings import Settings
from entropix_mlx.step import Metrics, Strategy
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
    letters: Tokens[int]

    def logprobs(self, row, tokens):
        return [-token / 50 for token in tokens]

    def openings(self, row, count):
        chance = random.Random(f"openings {self.text} {self.seed}")
        return chance.sample(sorted(set(self.letters)), min(count, len(set(self.letters))))


def scripted(text, seed, letters):
    """Return the row after a text, always the same for the same text."""
    chance = random.Random(f"{tuple(text)} {seed}")
    metrics = Metrics(*(chance.uniform(0, 5) for _ in Metrics._fields))
    strategy = chance.choice(STRATEGIES)
    usual = letters[(len(text) - len(PROMPT)) % len(letters)]
    token = usual if letters is PROSE and chance.random() < 0.95 else chance.choice(letters)
    token = EOS if chance.random() < 0.01 else token
    distribution = ScriptedDistribution(tuple(text), seed, letters)
    return Row(
        token,
        -chance.uniform(0, 4),
        metrics,
        strategy,
        0.7,
        0.9,
        27,
        0.03,
        distribution=distribution,
    )


def sequence_of(profile, limit, hooks=None, **options):
    """Return a sequence to `PROMPT` for a model that is not there."""
    config = SimpleNamespace(
        vocab_size=TOKENIZER.vocab_size + 2, max_position_embeddings=4096, model_type="none"
    )
    settings = Settings(max_tokens=limit, profile=profile, seed=1, **options)
    resolved = settings.resolved(config)
    return Sequence(SimpleNamespace(config=config), TOKENIZER, PROMPT, resolved, hooks)


def serve(sequence, seed, letters, choose=lambda fork: fork.winner):
    """Serve a sequence as a batch does, until it ends; return its steps."""
    text, wanted = list(PROMPT), 0
    while wanted is not None:
        wanted = sequence.take(scripted(text, seed, letters))
        if isinstance(wanted, ForkTrial):
            while wanted.living and not sequence.cancelled:
                for branch in wanted.living:
                    branch.grow(scripted([*text, *branch.tokens], seed, letters))
            sequence.ask_person()
            if sequence.undecided is not None:
                sequence.reply(choose(sequence.undecided))
            sequence.end_fork()
            wanted = None if sequence.over else sequence.tokens[-1]
        text = PROMPT + sequence.tokens
    return list(sequence.steps)
