"""Texts that are read on the side: their tokens one by one, and then they are forgotten."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from .requests import (
    NOTHING,
    Follow,
    Life,
    Read,
    Roll,
    Unread,
    Want,
)


def without_reads(life: Life) -> Life:
    """Return the same life with each `Read` spelt out: its tokens one by one, then `Unread`."""
    sent: Any = None
    while True:
        try:
            want = life.send(sent)
        except StopIteration:
            return
        sent = (yield from _read(want)) if isinstance(want, Read) else (yield want)


def _read(want: Read) -> Generator[Want, Any, Any]:
    if not want.after:
        return (yield from _read_after_text(want.tokens))
    branches = want.branches or tuple(range(len(want.after)))
    last = dict(zip(branches, want.after, strict=True))
    unread = {branch: token for branch, token in last.items() if token is not None}
    if unread:
        # What follows is queued ahead only where it is the same rollouts that go on.
        then = want.tokens[0] if len(unread) == len(branches) else NOTHING
        yield Roll(tuple(unread), tuple(unread.values()), None, then)
    found: Any = None
    for number, token in enumerate(want.tokens):
        then = want.tokens[number + 1] if number + 1 < len(want.tokens) else NOTHING
        found = yield Roll(branches, (token,) * len(branches), None, then)
    yield Unread(len(want.tokens), branches)
    if unread:
        yield Unread(1, tuple(unread))
    return found


def _read_after_text(tokens: Sequence[int]) -> Generator[Want, Any, Any]:
    found: Any = None
    for number, token in enumerate(tokens):
        then = tokens[number + 1] if number + 1 < len(tokens) else NOTHING
        found = yield Follow(token, None, then, side=True)
    yield Unread(len(tokens))
    return found
