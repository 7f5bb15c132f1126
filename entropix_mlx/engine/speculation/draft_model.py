"""Speculation with a draft model: a second, smaller model with the same tokenizer.

It continues the text so far, token by token, and the pass of the model that answers accepts what it
would have drawn itself. The draft model plans and draws with the same sampler and the randomness of
the same positions, so two models that agree draw the same tokens, also where they sample.

Its cache rolls back with the text: before each proposal it is shortened to what the text and the
last proposal have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...errors import TokenizerError, UnsupportedModelError
from ...models.base import LanguageModel
from ...models.llama.attention import RowScores
from ...samplers.base import Sampler
from ...samplers.draw import uniforms
from ...samplers.metrics.logits import numbers
from ...samplers.position import sample
from ...samplers.registry import make_sampler
from ...settings import BATCH, draft_length
from ..cached_text import CachedText

DRAFT_TOKENS = 3
"""Tokens that a draft model proposes for a pass, unless the caller says otherwise."""
READ_AT_ONCE = 256
"""Tokens of a text that the draft model reads at once; of the last ones it computes all logits."""
SPECIAL = ("bos_token", "eos_token", "unk_token")
"""Special tokens in which two tokenizers must be alike."""


class DraftModel:
    """A draft model, and its caches of the texts that it proposed for last.

        model, tokenizer = load("large")
        draft = DraftModel(*load("small"))
        stream_generate(model, tokenizer, prompt, draft_model=draft)

    Use it on the thread that loaded it.
    """

    def __init__(
        self, model: LanguageModel, tokenizer: TokenizerWrapper, tokens: int = DRAFT_TOKENS
    ) -> None:
        """Take over a loaded model that proposes at most `MAX_PROPOSED` tokens for a pass.

        Raises:
            SettingsError: so many cannot be proposed.
        """
        self.model = model
        self.tokens = draft_length(tokens)
        self._tokenizer = tokenizer
        self._idle: list[CachedText] = []
        self._fits: TokenizerWrapper | None = None

    def check(self, model: LanguageModel, tokenizer: TokenizerWrapper) -> None:
        """Check that this model can propose tokens to the one that answers.

        Raises:
            UnsupportedModelError: that model cannot take proposed tokens back.
            TokenizerError: it reads other tokens; the message says which ones differ.
        """
        if not model.takes_blocks:
            raise cannot_be_drafted(no_speculation(model))
        if tokenizer is self._fits:
            return
        if found := _difference(tokenizer, self._tokenizer):
            raise TokenizerError(
                f"the draft model has another tokenizer: {found}; give a draft model of the same"
                " family, or none"
            )
        self._fits = tokenizer

    def take(self, tokens: Sequence[int]) -> CachedText:
        """Return the cache that has most in common with a text; nobody else gets it meanwhile."""
        if not self._idle:
            return CachedText.empty(self.model)
        best = max(self._idle, key=lambda text: text.common(tokens))
        self._idle.remove(best)
        return best

    def give_back(self, text: CachedText) -> None:
        self._idle = [*self._idle, text][-BATCH:]


class DraftProposer:
    """The proposals of a draft model for one answer."""

    needs_last_token = True

    def __init__(self, draft: DraftModel, sampler: Sampler, seed: int, vocab: int) -> None:
        self._draft = draft
        # Where the sampler remembers the text, the most probable tokens are proposed.
        remembers = sampler.remembered is not None
        self._sampler = make_sampler("greedy", sampler.profile) if remembers else sampler
        self._seed = seed
        self._vocab = vocab
        self._text: CachedText | None = None
        self._length = 0
        """Tokens of the text before the last proposal."""

    def propose(self, tokens: Sequence[int], ahead: int = 0, alone: bool = True) -> list[int]:
        room = self._draft.model.config.max_position_embeddings - len(tokens)
        count = min(ahead + self._draft.tokens, room)
        if not tokens or count <= ahead:
            return []
        if self._text is None:
            self._text = self._draft.take(tokens)
        text = self._text
        text.shorten(self._common(text, tokens))
        for begin in range(len(text.ids), len(tokens) - READ_AT_ONCE, READ_AT_ONCE):
            chunk = tokens[begin : begin + READ_AT_ONCE]
            self._draft.model.prefill(mx.array([chunk]), text.layers)
            mx.eval(text.arrays())
            text.confirm(chunk)
        proposed = self._write(text, list(tokens[len(text.ids) :]), count)
        self._length = len(tokens)
        beyond = (at for at, token in enumerate(proposed) if token >= self._vocab)
        return proposed[ahead : next(beyond, count)]

    def close(self) -> None:
        if self._text is not None:
            self._draft.give_back(self._text)
        self._text, self._length = None, 0

    def _common(self, text: CachedText, tokens: Sequence[int]) -> int:
        if not self._length:
            return text.common(tokens[:-1])
        at = self._length
        while at < min(len(text.ids), len(tokens) - 1) and text.ids[at] == tokens[at]:
            at += 1
        return min(at, len(tokens) - 1)

    def _write(self, text: CachedText, unread: list[int], count: int) -> list[int]:
        """Return so many tokens that follow the unread ones; all but the last join the text."""
        text.hold()
        drawn: list[mx.array] = []
        following = mx.array(unread)
        at = len(text.ids) + len(unread)
        for number in range(count):
            forward = self._draft.model(following[None], text.layers)
            pairs = mx.array([uniforms(self._seed, at + number, self._sampler.draws)])
            scores = [layer for layer in forward.scores if isinstance(layer, RowScores)]
            found = sample(self._sampler, forward.logits[:, -1], [scores], pairs)
            following = found.token
            drawn.append(following)
        tokens = [int(token) for token in numbers(mx.concatenate(drawn))]
        text.confirm([*unread, *tokens[:-1]])
        return tokens


def cannot_be_drafted(why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"no draft model can be used here, since {why}: leave it out")


def no_speculation(model: LanguageModel) -> str:
    kind = model.config.model_type
    return f"the cache of this {kind} cannot take back a rejected token"


def _difference(one: TokenizerWrapper, other: TokenizerWrapper) -> str:
    """Return in which tokens two tokenizers differ, for people; empty if in none."""
    mine, theirs = one.get_vocab(), other.get_vocab()
    if mine != theirs:
        apart = {text for text, _ in mine.items() ^ theirs.items()}
        first = min(apart, key=lambda text: (mine.get(text, theirs.get(text, 0)), text))
        more = f", and {len(apart) - 1} more differ" if len(apart) > 1 else ""
        return f"{first!r} is {_number(theirs, first)} there and {_number(mine, first)} here{more}"
    for name in SPECIAL:
        own, its = getattr(one, name, None), getattr(other, name, None)
        if own != its:
            return f"its {name} is {its!r}, and the model's is {own!r}"
    return ""


def _number(vocabulary: dict[str, int], text: str) -> str:
    return f"token {vocabulary[text]}" if text in vocabulary else "no token"
