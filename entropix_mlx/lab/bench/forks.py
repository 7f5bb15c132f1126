"""Measure the rollouts of a fork: as one batch over a shared prefix, and one after the other.

The second way gives each rollout a copy of the cache. Both use the same engine, seed and prefix,
and draw the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from ...engine.cached_text import BranchCaches, CachedText
from ...engine.forward import Engine, SlotRows
from ...models.llama.cache import TextCache
from ...models.llama.model import Model
from ...settings import ResolvedSettings, Settings
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

    engine: Engine
    resolved: ResolvedSettings
    text: CachedText
    """Up to the branch point, which is included."""
    first: list[int]
    """The first token of each rollout."""
    depth: int
    """Tokens of each."""


def make_fork(model: Model, prefix: Sequence[KVCache], width: int, depth: int) -> Fork:
    """Return a fork right after the tokens of a cache; the cache itself is not changed."""
    text = CachedText(copies(prefix))
    engine, resolved = (
        Engine(model),
        Settings(profile="reference", seed=SEED).resolved(model.config),
    )
    queued = engine.queue([SlotRows(text.layers, mx.array([0]), resolved)])
    text.confirm([0])
    first = [position.token for position in queued.position(0).openings(width)]
    mx.eval(text.arrays())
    return Fork(engine, resolved, text, first, depth)


def at_once(fork: Fork) -> list[list[int]]:
    """Return the tokens of all rollouts, decoded as one batch; commit one and take it back."""
    length = len(fork.text.ids)
    caches = BranchCaches(fork.text, len(fork.first))
    (group,) = caches.select(range(len(fork.first)))
    branches = _grow(fork, group.layers, fork.first)
    caches.commit(0, branches[0][:-1])
    fork.text.shorten(length)
    return branches


def one_by_one(fork: Fork) -> list[list[int]]:
    """Return the tokens of all rollouts, each decoded on a copy of the cache; keep the copies."""
    kept = [copies(fork.text.layers) for _ in fork.first]
    return [_grow(fork, cache, [token])[0] for cache, token in zip(kept, fork.first, strict=True)]


def _grow(fork: Fork, layers: Sequence[TextCache], first: list[int]) -> list[list[int]]:
    """Decode rollouts over one cache until they have their full length; no end of text counts."""
    rows = [[token] for token in first]
    pending = fork.engine.queue([SlotRows(layers, mx.array(first), fork.resolved)])
    for length in range(1, fork.depth):
        ahead = None
        if length + 1 < fork.depth:
            drawn = pending.drawn(range(len(first)))
            ahead = fork.engine.queue([SlotRows(layers, drawn, fork.resolved)])
        for row, reading in zip(rows, pending.read(), strict=True):
            row.append(reading.token)
        pending = ahead or pending
    return rows


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
