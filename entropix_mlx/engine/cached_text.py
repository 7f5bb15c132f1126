"""Texts in the model's cache: which tokens it holds of each, prompts on their way in, and branches.

The life of the cache of one answer, from left to right:

    ids of the text    │ prompt ............ │ answer ......  │
    in the cache       │ prompt ............ │ answer ......  │ 1 unconfirmed │
                                              └ anchor: another answer may begin here

1. A `Prompt` finds the cached text with which it has most in common, shortens it to that, and joins
   it chunk by chunk.
2. `take` anchors the place behind the prompt and hands the text to the answer; where several
   answers go on from one prompt, each gets a twin that reads the shared part and copies nothing.
3. A pass may be queued before the host knows what was drawn: its token is in the cache,
   unconfirmed. `confirm` makes it part of the text, `take_back` removes it.
4. At a fork, `BranchCaches` share the text, which nobody changes meanwhile; `commit` appends the
   beginning of the branch that won.
5. When the answer ends, the text is shortened to what was committed, and serves the next prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx

from ..answer.position import Likelihood
from ..answer.requests import TEXT
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
    takes_blocks,
    trim,
)

LEAST_AWAITED = 64
"""Tokens of another prompt that are worth waiting for."""
SAMPLE_STEP = 64
"""Tokens by which the memory of a text grows that shares its beginning with others."""
BRANCH_STEP = 16
"""Tokens by which the memory of branches grows."""


class CachedText:
    """One text in the model's cache: the caches of all layers, and the ids of the tokens in them.

    `ids` lists the tokens that are known to belong to the text. Between `Engine.queue` and the
    moment when the host knows what was drawn, the caches may hold tokens more: unconfirmed ones.
    """

    members = (TEXT,)

    def __init__(self, layers: Sequence[TextCache]) -> None:
        self.layers = list(layers)
        self.base = min(int(layer.offset) for layer in layers)
        """Number of tokens that the caches held when this text took them over. Their ids are not
        known; `ids` begins after them."""
        trim(self.layers, self.base)  # an interrupt may have left more in some layers
        self.ids: list[int] = []

    @classmethod
    def empty(cls, model: LanguageModel) -> CachedText:
        return cls(model.make_cache())

    def found(self, _: Sequence[int]) -> CachedText:
        """Return this text, as the one that a `Prompt` joins; equal for all of its prompts."""
        return self

    def common(self, prompt: Sequence[int]) -> int:
        for index, (own, other) in enumerate(zip(self.ids, prompt, strict=False)):
            if own != other:
                return index
        return min(len(self.ids), len(prompt))

    def confirm(self, tokens: Sequence[int]) -> None:
        """Note the id of the token that the caches hold beyond `ids`, or will after this pass."""
        self.ids.extend(tokens)

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

    def anchor(self) -> None:
        """Have the caches remember this place, so that `shorten` can return to it."""
        for layer in self.layers:
            anchor(layer)

    def hold(self) -> None:
        """Have the caches remember this place before tokens that will be taken back."""
        for layer in self.layers:
            hold(layer)

    def takes_blocks(self, layers: AttentionLayers) -> bool:
        """Tell whether a block can follow in one pass, and any token of it be taken back."""
        if layers == "all" and isinstance(self.layers[0], SharedPrefixCache):
            return False  # each token's scores of all layers would need a copy of what is shared
        return all(map(takes_blocks, self.layers))

    def arrays(self) -> list[mx.array]:
        return [array for layer in self.layers for array in arrays_of(layer)]

    def copy(self, length: int) -> CachedText:
        """Return a text of its own of at most the first `length` tokens whose ids are known."""
        text = CachedText([copied(layer, self.base + length) for layer in self.layers])
        text.base, text.ids = self.base, self.ids[: int(text.layers[0].offset) - self.base]
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
    """A prompt on its way into the cache, from which one answer goes on, or several.

    What the cache holds of it is looked up when its computation begins (`find`), not before: the
    prompts that are computed until then may begin as it does.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        find: Callable[[Sequence[int]], CachedText],
        *,
        shared: bool = False,
        joins: bool = False,
        scored: int | None = None,
    ) -> None:
        """Prepare a prompt.

        Args:
            tokens: all of it. The last token is computed with the first pass of the answer.
            find: returns the text that a prompt is to join, which may begin as it does.
            joins: whether what `find` returns may be that of other prompts, as far as they are
                computed by then.
            shared: whether several answers go on from it, so that none of them may change it.
            scored: how many of the most probable tokens to list beside each token's own likelihood;
                None measures none.
        """
        self.tokens = list(tokens)
        self.shared = shared
        self._joins = joins
        self.scored = scored
        self.likelihoods: list[Likelihood] = []
        """Of the tokens after the first, if they are asked for."""
        self.cached = 0
        """Tokens that were in the cache before."""
        self.opened = False
        """Whether its computation has begun."""
        self._find = find
        self._text: CachedText | None = None

    @property
    def text(self) -> CachedText:
        """What is in the cache, of which this prompt is the end."""
        if self._text is None:
            text = self._text = self._find(self.tokens)
            # The last token must be computed again: its logits are gone.
            text.shorten(text.common(self.tokens[:-1]))
            self.cached = len(text.ids)
            self.opened = True
        return self._text

    def is_like(self, other: Prompt) -> bool:
        if self.opened or self._find != other._find or self.scored != other.scored:
            return False
        return self.tokens == other.tokens

    def follows(self, other: Prompt) -> bool:
        """Tell whether to wait: much that comes next of another one is the beginning of this."""
        if self.opened or not (self._joins and other.opened and other.unread):
            return False
        end = len(other.text.ids) + LEAST_AWAITED
        return len(self.tokens) > end and self.tokens[:end] == other.tokens[:end]

    @property
    def unread(self) -> int:
        """How many tokens are still to be computed before an answer may begin."""
        return len(self.tokens) - 1 - len(self.text.ids)

    @property
    def total(self) -> int:
        return len(self.tokens) - self.cached

    @property
    def done(self) -> int:
        return len(self.text.ids) - self.cached

    @property
    def complete(self) -> bool:
        return self.opened and not self.unread

    def chunk(self, most: int) -> tuple[list[int], list[int]]:
        begin = len(self.text.ids)
        end = min(begin + most, len(self.tokens) - 1)
        return self.tokens[begin:end], self.tokens[begin + 1 : end + 1]

    def take(self) -> CachedText:
        """Return a text that goes on from the prompt, all of which is in the cache.

        The place is remembered, so that another answer can begin here.
        """
        self.text.anchor()
        return self.text.twin() if self.shared else self.text


class BranchCaches:
    """The branches of a fork: each goes on from the same text, which none of them changes.

    Branches that grow in the same passes form a group, with one cache a layer for all of them. One
    that stops growing leaves its group; its cache stays, since it may still win.
    """

    def __init__(self, text: CachedText, count: int) -> None:
        self._text = text
        layers = [share(layer, BRANCH_STEP, count) for layer in text.layers]
        self._groups = [BranchGroup(list(range(count)), layers)]

    def select(self, branches: Iterable[int]) -> list[BranchGroup]:
        """Return the groups that hold these branches and no others.

        A group that also holds others is split; those lose an unconfirmed token.
        """
        # A group is one batch of rows in its caches, so who leaves must be split off.
        selected = set(branches)
        self._groups = [part for group in self._groups for part in group.split(selected)]
        chosen = [group for group in self._groups if group.members[0] in selected]
        for group in self._groups:
            if group not in chosen:  # it was queued ahead, but has stopped
                group.take_back()
        return chosen

    def take_back(self) -> None:
        for group in self._groups:
            group.take_back()

    def commit(self, branch: int, tokens: Sequence[int]) -> None:
        """Append the first tokens of a branch to the text; the ids say how many."""
        if not tokens:  # and perhaps nothing was computed at all
            return
        group = next(group for group in self._groups if branch in group.members)
        row = group.members.index(branch)
        for shared, layer in zip(group.layers, self._text.layers, strict=True):
            shared.commit(row, len(tokens), layer)
        self._text.ids.extend(tokens)


class BranchGroup:
    """Branches of one length, whose next tokens are computed together."""

    def __init__(self, members: list[int], layers: list[RowsCache], end: int | None = None) -> None:
        """Combine branches.

        Args:
            members: their numbers, in the order of the rows.
            layers: a cache a layer.
            end: tokens of each text that are confirmed; None for all that are cached.
        """
        self.members = members
        self.layers = layers
        self._end = int(layers[0].offset) if end is None else end

    def split(self, selected: set[int]) -> list[BranchGroup]:
        """Return this group, or its two parts if only some of its members are selected."""
        inside = [row for row, member in enumerate(self.members) if member in selected]
        if len(inside) in (0, len(self.members)):
            return [self]
        rest = [row for row, member in enumerate(self.members) if member not in selected]
        return [self._of_rows(inside), self._of_rows(rest)]

    def confirm(self, tokens: Sequence[int]) -> None:
        """Note that the token of each branch belongs to it, which is cached or comes next."""
        self._end += 1

    def take_back(self) -> None:
        for layer in self.layers:
            layer.trim(int(layer.offset) - self._end)

    def _of_rows(self, rows: list[int]) -> BranchGroup:
        members = [self.members[row] for row in rows]
        return BranchGroup(members, [layer.of_rows(rows) for layer in self.layers], self._end)
