"""Measure the prefill and the time to the first token, without a cache and after a cached text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, cast

from .pair import GREEDY, LAST, UNINTERRUPTED, Pair, copies, made_up_cache
from .records import Effort, Figure
from .timing import in_turns, seconds, to_figures

PREFILL = "prefill"
FIRST_TOKEN = "first token"
TEXT = "The lighthouse keeper climbed the stairs, counted the ships, and wrote them down. "
FOLLOWING = 2
"""Tokens asked for: the first is timed; while it is read, a program may compute the second."""


def measure_prefill(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the figures of both cases."""
    prompt = _long_prompt(pair, effort.prompt)
    cold = in_turns(
        {
            GREEDY: lambda: _first(pair.theirs(prompt, FOLLOWING)),
            LAST: lambda: _first(pair.ours(prompt, FOLLOWING, profile=UNINTERRUPTED)),
        },
        effort.prompt_repeats,
    )
    rates = {name: [len(prompt) / value for value in own] for name, own in cold.items()}
    case = f"{len(prompt)} tokens"
    return [
        *to_figures(PREFILL, case, "tokens/s", rates, (GREEDY,)),
        *to_figures(FIRST_TOKEN, f"{case}, cold", "s", cold, (GREEDY,)),
        *_after_a_conversation(pair, effort),
    ]


def _after_a_conversation(pair: Pair, effort: Effort) -> list[Figure]:
    history = min(effort.history, pair.model.config.max_position_embeddings // 2)
    cache = made_up_cache(pair.model, history)
    question = _long_prompt(pair, effort.question)
    ours = partial(pair.ours, question, FOLLOWING, profile=UNINTERRUPTED)
    theirs = partial(pair.theirs, question, FOLLOWING)
    cached = in_turns(
        {
            GREEDY: lambda: _first(theirs(prompt_cache=copies(cache))),
            LAST: lambda: _first(ours(prompt_cache=copies(cache))),
        },
        effort.prompt_repeats,
    )
    case = f"{len(question)} tokens after {history:,} cached"
    return to_figures(FIRST_TOKEN, case, "s", cached, (GREEDY,))


def _long_prompt(pair: Pair, length: int) -> list[int]:
    """Return a text of `length` tokens."""
    return list(pair.tokenizer.encode(TEXT * length)[:length])


def _first(stream: Iterator[object]) -> float:
    """Return the seconds until the first token."""
    with closing(cast(Any, stream)):
        return seconds(lambda: next(stream))
