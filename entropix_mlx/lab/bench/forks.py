"""Measure the rollouts of a fork: as one batch over a shared prefix, and one after the other.

The second way gives each rollout a copy of the cache. Both use the same engine, seed and prefix,
and draw the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from ...decoding.branching import Draft, roll_out
from ...decoding.engine import Pending, TextEngine, with_tokens
from ...models.llama import Model
from ...policies.registry import make_policy
from .pair import SEED, Pair, copies, made_up_cache
from .records import Effort, Figure
from .timing import Repeats, in_turns, peak_bytes, seconds, to_figures

FORK_TIME = "fork, time"
FORK_MEMORY = "fork, memory"
AT_ONCE = "one batch"
ONE_BY_ONE = "one by one"


@dataclass(frozen=True)
class Fork:
    """A branch point, and how many rollouts of which length follow from it."""

    model: Model
    cache: list[KVCache]
    """Of the text up to the branch point, which is included."""
    engine: TextEngine
    pending: Pending
    """The branch point."""
    width: int
    """Rollouts."""
    depth: int
    """Tokens of each."""

    def drafts(self) -> list[Draft]:
        """Return the first tokens of the rollouts, which no end of text makes shorter."""
        (reading,) = self.engine.read(self.pending)
        tokens = self.engine.first_tokens(self.pending, self.width)
        return [Draft(r, lambda _: None) for r in with_tokens(self.pending, reading, tokens)]


def make_fork(model: Model, prefix: Sequence[KVCache], width: int, depth: int) -> Fork:
    """Return a fork right after the tokens of a cache; the cache itself is not changed."""
    cache = copies(prefix)
    engine = TextEngine(model, cache, make_policy("entropix"), SEED)
    pending = engine.queue(mx.array([0]))
    engine.read(pending)
    mx.eval([layer.keys_and_values() for layer in cache])
    return Fork(model, cache, engine, pending, width, depth)


def at_once(fork: Fork) -> list[list[int]]:
    """Return the tokens of all rollouts, decoded as one batch; commit one and take it back."""
    start = fork.engine.position
    drafts = fork.drafts()
    branches = roll_out(fork.engine, drafts, fork.depth, lambda: False, pipelined=True)
    branches.commit(0, fork.depth - 1)
    fork.engine.shorten(start)
    return [draft.tokens for draft in drafts]


def one_by_one(fork: Fork) -> list[list[int]]:
    """Return the tokens of all rollouts, each decoded on a copy of the cache; keep the copies."""
    policy = make_policy("entropix")
    kept = []
    drafts = fork.drafts()
    for draft in drafts:
        cache = copies(fork.cache)
        kept.append(cache)
        engine = TextEngine(fork.model, cache, policy, SEED)
        pending = engine.queue(mx.array(draft.tokens))
        for length in range(1, fork.depth):
            last = length + 1 == fork.depth
            ahead = None if last else engine.queue(pending.drawn.token)
            (reading,) = engine.read(pending)
            draft.grow(reading)
            pending = ahead or pending
    return [draft.tokens for draft in drafts]


def time_and_peak(fork: Fork, repeats: int) -> tuple[Repeats, Repeats]:
    """Return the seconds that both ways take, and the MB that each allocates at its peak."""
    ways = {AT_ONCE: lambda: at_once(fork), ONE_BY_ONE: lambda: one_by_one(fork)}
    memory = {name: [peak_bytes(run) / 1e6] for name, run in ways.items()}  # and a warm-up
    timed = {name: lambda run=run: seconds(run) for name, run in ways.items()}
    return in_turns(timed, repeats), memory


def measure_forks(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the figures of all widths; none if a fork does not even fit into an empty context."""
    times, sizes = [], []
    limit = pair.model.config.max_position_embeddings
    length = min(effort.prefix, limit - 1 - effort.depth)  # the fork itself has a position
    if length < 1:
        return []
    prefix = made_up_cache(pair.model, length)
    for width in effort.widths:
        fork = make_fork(pair.model, prefix, width, effort.depth)
        taken, memory = time_and_peak(fork, effort.fork_repeats)
        case = f"{width} × {effort.depth} tokens after {length:,}"
        times += to_figures(FORK_TIME, case, "s", taken, (ONE_BY_ONE,))
        sizes += to_figures(FORK_MEMORY, case, "MB", memory, (ONE_BY_ONE,))
    return times + sizes
