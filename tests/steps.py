"""Steps, headers and traces of answers that nobody generated, for whatever reads or draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Alternative, Branch, Fork, Origin, Step, Strategy
from entropix_mlx.traces.trace import Header, Trace

AWKWARD = ["[bold]", "x[/]", "\n", "👩‍👩‍👧", "", "\x1b[31m", "日本", "\t", "[link=x]", " end.\n"]
WORDS = ["The", "keeper", "counted", "ships", "until", "the", "lamp", "went", "out", "."]
HEADER = Header(
    model="demo",
    sampler="entropix",
    profile=Profile.load(),
    seed=7,
    messages=[{"role": "user", "content": "What did the [keeper] do?"}],
    context_length=8192,
    prompt_tokens=40,
    versions={},
)


def make_step(index: int, text: str, strategy: Strategy = Strategy.ADAPTIVE, **changes) -> Step:
    values = {
        "index": index,
        "token": 100 + index,
        "text": text,
        "logprob": -0.5,
        "entropy": (index * 0.37) % 7,
        "varentropy": (index * 0.83) % 14,
        "margin": 0.25,
        "attention_entropy": 3.0,
        "attention_varentropy": 0.5,
        "agreement": 0.01,
        "head_divergence": 0.4,
        "interaction_strength": 2.0,
        "position_score": -1.0,
        "strategy": strategy,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 27,
        "min_p": 0.03,
        "top_logprobs": tuple(
            Alternative(100 + index + n, text if not n else f" other{n}", -0.5 - n)
            for n in range(4)
        ),
        "time": index / 20,
    }
    return Step(**values | changes)


def make_steps(count: int = 60) -> list[Step]:
    """An answer with every strategy and origin, and with texts that could break a screen."""
    branches = tuple(
        Branch((1, 2), f" branch [{n}] here.", -0.8 - n, 2.0, lead=lead, error=0.25 if n else 0.0)
        for n, lead in enumerate((0.0, 0.5, -1.25))
    )
    steps = []
    for index in range(count):
        text = AWKWARD[index - 20] if 20 <= index < 30 else " " + WORDS[index % len(WORDS)]
        strategy = list(Strategy)[index % 6]
        changes = {}
        if index in (8, 9):
            strategy, changes = Strategy.THINK, {"origin": Origin.INSERTED}
        if index in (14, 15):
            strategy = Strategy.BRANCH
            fork = Fork(branches, 1) if index == 14 else None
            changes = {"origin": Origin.BRANCH, "fork": fork}
        steps.append(make_step(index, text, strategy, **changes))
    return steps


def make_trace(steps: list[Step] | None = None, **changes) -> Trace:
    """Return a trace whose header has some changes."""
    return Trace(replace(HEADER, **changes), make_steps() if steps is None else steps, None)


def first_divergence(first: Sequence[Step], second: Sequence[Step]) -> int | None:
    """Return the index of the first token that two answers do not share; None if there is none."""
    tokens = zip_longest(*([step.token for step in steps] for steps in (first, second)))
    return next((index for index, (one, other) in enumerate(tokens) if one != other), None)
