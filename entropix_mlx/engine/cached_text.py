"""Texts in the model's cache: which tokens it holds of each, and rollouts that go on from one."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..models.base import AttentionLayers, LanguageModel
from ..models.llama.cache import (
    RowsCache,
    SharedPrefixCache,
    TextCache,
    anchor,
    arrays_of,
    copied,
    hold,
    share,
    takes_runs,
    trim,
)

TEXT = 0
"""The number of a text's only row; at a branch point, every rollout has a row."""
SAMPLE_STEP = 64
"""Tokens by which the memory of a text grows that shares its beginning with others."""
ROLLOUT_STEP = 16
"""Tokens by which the memory of rollouts grows."""


class CachedText:
    """One text in the model's cache: the caches of all layers, and the ids of the tokens in them.

    `ids` lists the tokens that are known to belong to the text. Between `Engine.queue` and the
    moment when the host knows what was drawn, the caches may hold one token more: a guess.
    `take_back` removes it, `confirm` makes it part of the text.
    """

    members = (TEXT,)

    def __init__(self, layers: Sequence[TextCache]) -> None:
        """Take over the caches of all layers, which may already hold tokens."""
        self.layers = list(layers)
        self.base = min(int(layer.offset) for layer in layers)
        """Number of tokens that the caches held when this text took them over. Their ids are not
        known; `ids` begins after them."""
        trim(self.layers, self.base)  # an interrupt may have left more in some layers
        self.ids: list[int] = []
        self.guessed = 0
        """Tokens in the caches that nobody has confirmed, 0 or 1."""

    @classmethod
    def empty(cls, model: LanguageModel) -> CachedText:
        """Return a text without tokens."""
        return cls(model.make_cache())

    def common(self, prompt: Sequence[int]) -> int:
        """Return how many tokens at the beginning of a prompt this text begins with, too."""
        for index, (own, other) in enumerate(zip(self.ids, prompt, strict=False)):
            if own != other:
                return index
        return min(len(self.ids), len(prompt))

    def confirm(self, tokens: Sequence[int]) -> None:
        """Note the id of the token that the caches hold beyond `ids`, or will after this pass."""
        self.ids.extend(tokens)
        self.guessed = 0

    def take_back(self) -> None:
        """Remove from the caches what is not in `ids`."""
        self.shorten(len(self.ids))

    def shorten(self, length: int) -> None:
        """Keep at most the first `length` tokens, perhaps fewer: `ids` says how many.

        Where a cache cannot be cut anywhere, as the state of a recurrent layer, it goes back to the
        last place before that it remembers. This also mends a text whose computation was
        interrupted: the caches of its layers may be of different lengths then, and the shortest
        counts.
        """
        trim(self.layers, self.base + min(length, len(self.ids)))
        del self.ids[int(self.layers[0].offset) - self.base :]
        self.guessed = 0

    def anchor(self) -> None:
        """Have the caches remember this place, so that `shorten` can return to it."""
        for layer in self.layers:
            anchor(layer)

    def hold(self) -> None:
        """Have the caches remember the place before a side text, which will be forgotten."""
        for layer in self.layers:
            hold(layer)

    def takes_runs(self, layers: AttentionLayers) -> bool:
        """Tell whether several tokens can follow in one pass, and any of them be taken back.

        Args:
            layers: those whose attention is measured.
        """
        if layers == "all" and isinstance(self.layers[0], SharedPrefixCache):
            return False  # each token's scores of all layers would need a copy of what is shared
        return all(map(takes_runs, self.layers))

    def arrays(self) -> list[mx.array]:
        """Return the keys and values that only this text has, for MLX to compute."""
        return [array for layer in self.layers for array in arrays_of(layer)]

    def copy(self, length: int) -> CachedText:
        """Return a text of its own of at most the first `length` tokens, whose ids are known."""
        text = CachedText([copied(layer, length) for layer in self.layers])
        text.base, text.ids = 0, self.ids[: int(text.layers[0].offset)]
        mx.eval(text.arrays())
        return text

    def twin(self) -> CachedText:
        """Return a text that begins with this one, whose cache it reads and does not copy.

        This text must not change from now on.
        """
        text = CachedText([share(layer, SAMPLE_STEP) for layer in self.layers])
        text.base, text.ids = self.base, list(self.ids)
        return text


class Prompt:
    """The beginning of one text, or of several, as far as it is not in the cache yet."""

    def __init__(self, text: CachedText, unread: Sequence[int], shared: bool = False) -> None:
        """Prepare.

        Args:
            text: what is in the cache.
            unread: the tokens that are to follow it there.
            shared: whether several answers go on from it, so that none of them may change it.
        """
        self.text = text
        self.unread = list(unread)
        self.total = len(self.unread) + 1
        self._shared = shared

    @property
    def done(self) -> int:
        """Tokens that were computed here."""
        return self.total - 1 - len(self.unread)

    def take(self) -> CachedText:
        """Return a text that goes on from the prompt, all of which is in the cache.

        The place is remembered, so that another answer can begin here.
        """
        self.text.anchor()
        return self.text.twin() if self._shared else self.text


class BranchCaches:
    """The rollouts at a branch point: each goes on from the same text, which none of them changes.

    ForkRule that grow in the same passes form a group, with one cache a layer for all of them. One
    that stops growing leaves its group; what it has cached is kept, since it may still win.
    """

    def __init__(self, text: CachedText, count: int) -> None:
        """Begin rollouts 0 to `count` − 1, none of which has a token yet."""
        self._text = text
        layers = [share(layer, ROLLOUT_STEP, count) for layer in text.layers]
        self._groups = [BranchGroup(list(range(count)), layers)]

    def select(self, branches: Sequence[int]) -> list[BranchGroup]:
        """Return the groups that hold these rollouts and no others.

        A group that also holds others is split; those lose a guess that it may hold.
        """
        wanted = set(branches)
        self._groups = [part for group in self._groups for part in group.split(wanted)]
        chosen = [group for group in self._groups if group.members[0] in wanted]
        for group in self._groups:
            if group not in chosen:
                group.take_back()
        return chosen

    def take_back(self) -> None:
        """Remove from the caches what was only guessed."""
        for group in self._groups:
            group.take_back()

    def shorten(self, branches: Sequence[int], count: int) -> None:
        """Take the last `count` tokens of these rollouts away."""
        for group in self.select(branches):
            group.shorten(count)

    def commit(self, branch: int, tokens: Sequence[int]) -> None:
        """Append the first tokens of a rollout to the text; the ids say how many."""
        if not tokens:  # and perhaps nothing was computed at all
            return
        group = next(group for group in self._groups if branch in group.members)
        row = group.members.index(branch)
        for shared, layer in zip(group.layers, self._text.layers, strict=True):
            shared.commit(row, len(tokens), layer)
        self._text.ids.extend(tokens)


class BranchGroup:
    """ForkRule of one length, whose next tokens are computed together."""

    def __init__(self, members: list[int], layers: list[RowsCache]) -> None:
        """Combine.

        Args:
            members: the numbers of the rollouts, in the order of the rows.
            layers: a cache a layer.
        """
        self.members = members
        self.layers = layers
        self.guessed = 0
        """Tokens in the caches that nobody has confirmed, 0 or 1."""

    def split(self, wanted: set[int]) -> list[BranchGroup]:
        """Return this group, or its two parts if only some of its members are wanted."""
        inside = [row for row, member in enumerate(self.members) if member in wanted]
        if len(inside) in (0, len(self.members)):
            return [self]
        rest = [row for row, member in enumerate(self.members) if member not in wanted]
        return [self._of_rows(inside), self._of_rows(rest)]

    def confirm(self, tokens: Sequence[int]) -> None:
        """Note that the tokens that were guessed, or come with this pass, are what was wanted."""
        self.guessed = 0

    def hold(self) -> None:
        """Do nothing: rollouts remember every place."""

    def take_back(self) -> None:
        """Remove from the caches what was only guessed."""
        self.shorten(self.guessed)

    def shorten(self, count: int) -> None:
        """Take the last `count` tokens of every member away."""
        for layer in self.layers:
            layer.trim(count)
        self.guessed = 0

    def _of_rows(self, rows: list[int]) -> BranchGroup:
        members = [self.members[row] for row in rows]
        part = BranchGroup(members, [layer.of_rows(rows) for layer in self.layers])
        part.guessed = self.guessed
        return part
