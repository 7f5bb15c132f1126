"""Speculation: several tokens from one pass, where the text can be foreseen.

A pass takes a *block*: a known token, and those that a proposer expects to follow it. Each has a
row, so each position is measured, planned and drawn as if it were alone, with its own randomness
and, where the sampler remembers the text, in the state that the block leads to:

    pass      1                                    2
    block     apples  [,] [pears] [,] [figs]   →   plums …       three of four were accepted:
                ↓      ↓     ↓     ↓                             four tokens from one pass
    draws       ,    pears   ,   plums                           "figs" leaves the cache

1. `propose` asks the proposer for the block behind a known token.
2. Once the pass is read, the slot lets the answer go on from one position of the block after the
   other, for as long as it asks for the token that was proposed.
3. The rest of the block leaves the cache. A slot with a block in flight queues nothing ahead: what
   comes next depends on how much of it is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...answer.requests import DRAWN, Advance
from ...errors import UnsupportedModelError
from ...models.base import LanguageModel
from ...models.device import pass_costs, proposes_by_default
from ...models.llama.model import Model
from ...models.llama.weight_layout import precision
from ...settings import ResolvedSettings
from .draft_model import DraftModel, DraftProposer, cannot_be_drafted, no_speculation
from .ngram import NgramProposer
from .proposer import Lengths, Proposer


class Speculation:
    """The proposals to one slot: those of the first of its proposers that has any."""

    def __init__(self, *proposers: Proposer) -> None:
        self._proposers = proposers

    def waits(self, request: Advance) -> bool:
        """Tell whether nothing may be queued behind a request before its position is read."""
        known = any(proposer.needs_last_token for proposer in self._proposers)
        return request.then == DRAWN and known

    def propose(
        self, request: Advance, text: Sequence[int], *, ahead: int = 0, alone: bool = True
    ) -> tuple[int, ...]:
        """Return the block that probably follows a request on the text, whose token the text
        includes.

        `ahead` is 1 where the block begins behind a token that is drawn, but not known yet.
        """
        if request.then != DRAWN:
            return ()
        found = (proposer.propose(text, ahead, alone) for proposer in self._proposers)
        return tuple(next(filter(None, found), ()))

    def close(self) -> None:
        for proposer in self._proposers:
            proposer.close()


def speculation_for(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    resolved: ResolvedSettings,
    draft: DraftModel | None,
    unknown: int,
) -> Speculation | None:
    """Return the speculation for an answer on this machine; None for none.

    Args:
        unknown: tokens of the answer's text whose ids are not known.

    Raises:
        UnsupportedModelError: it was asked for, and the model cannot take tokens back.
        TokenizerError: the draft model reads other tokens.
    """
    ngram = _ngram(model, resolved.settings.speculation)
    if draft is None:
        return None if ngram is None else Speculation(ngram)
    draft.check(model, tokenizer)
    if unknown:
        raise cannot_be_drafted(f"the cache that was given holds {unknown} tokens of unknown text")
    proposer = DraftProposer(draft, resolved.sampler, resolved.seed, model.config.vocab_size)
    return Speculation(proposer) if ngram is None else Speculation(ngram, proposer)


def _ngram(model: LanguageModel, setting: str | int) -> NgramProposer | None:
    """Return the proposer of what stands in the text already; None for none."""
    if isinstance(setting, int):
        if not model.takes_blocks:
            raise UnsupportedModelError(
                f"no tokens can be proposed here, since {no_speculation(model)}: set speculation to"
                " auto"
            )
        return NgramProposer(Lengths(setting))
    if setting == "off" or not model.takes_blocks:
        return None
    if not proposes_by_default(packed=precision(model).bits is not None):
        return None
    costs = pass_costs(mixes_experts=model.mixes_experts, own_port=isinstance(model, Model))
    return NgramProposer(Lengths(costs=costs))
