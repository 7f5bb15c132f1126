"""Speculation: several tokens from one pass, where the text can be foreseen.

A pass takes a *block*: a known token, and those that a proposer expects to follow it. Each has a
row, so each position is measured, planned and drawn as if it were alone, with its own randomness
and, where the sampler remembers the text, in the state that the block leads to:

    pass      1                                    2
    block     apples  [,] [pears] [,] [figs]   →   plums …       three of four were accepted:
                ↓      ↓     ↓     ↓                             four tokens from one pass
    draws       ,    pears   ,   plums                           "figs" leaves the cache

1. `propose` asks the proposer for the block behind a known token.
2. Once the pass is read, `accept` lets the answer go on from one position of the block after the
   other, for as long as it asks for the token that was proposed.
3. The rest of the block leaves the cache. A slot with a block in flight queues nothing ahead: what
   comes next depends on how much of it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...answer.requests import DRAWN, Advance
from ...errors import UnsupportedModelError
from ...models.base import LanguageModel
from ...models.llama.model import Model
from ...models.llama.weight_layout import blas_batches, on_cpu, precision
from ...settings import ResolvedSettings
from .draft_model import DraftModel, DraftProposer, FirstOf, cannot_be_drafted, no_speculation
from .ngram import NgramProposer
from .proposer import BATCHED, CAREFUL, ONE_BY_ONE, Costs, Lengths, Proposer


class Speculation:
    """What is proposed to one slot, and how much of it is accepted."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer

    def waits(self, request: Advance) -> bool:
        """Tell whether nothing may be queued behind a request before its position is read."""
        return request.then == DRAWN and self._proposer.needs_last_token

    def propose(
        self, request: Advance, text: Sequence[int], *, ahead: int = 0, alone: bool = True
    ) -> tuple[int, ...]:
        """Return the block that probably follows a request on the text.

        Args:
            request: the known token.
            text: all tokens of the text, that one included.
            ahead: 1 where the block begins behind a token that is drawn, but not known yet.
            alone: whether no other slot is in the pass.
        """
        if request.then != DRAWN:
            return ()
        return tuple(self._proposer.propose(text, ahead, alone))

    def accept(
        self,
        block: Sequence[int],
        go_on: Callable[[int], Advance | None],
        confirm: Callable[[int, int], None],
    ) -> None:
        """Go through a block as far as the answer asks for its tokens.

        Args:
            block: the proposed tokens.
            go_on: lets the answer go on from the position before a token of the block, given by its
                number, and returns what it asks for on the text; None where that is nothing.
            confirm: makes such a token part of the text.
        """
        for number in range(len(block) + 1):
            request = go_on(number)
            if request is None or [*request.tokens.values()] != [*block[number : number + 1]]:
                return
            confirm(number, block[number])

    def close(self) -> None:
        """The answer has ended."""
        self._proposer.close()


def speculation_for(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    resolved: ResolvedSettings,
    draft: DraftModel | None,
    unknown: int,
) -> Speculation | None:
    """Return the speculation for an answer on this machine; None for none.

    Args:
        model: the one that answers.
        tokenizer: its tokenizer.
        resolved: the settings of the answer.
        draft: a draft model, or None.
        unknown: tokens of its text whose ids are not known.

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
    return Speculation(proposer if ngram is None else FirstOf(ngram, proposer))


def _ngram(model: LanguageModel, asked: str | int) -> NgramProposer | None:
    """Return the proposer of what stands in the text already; None for none.

    Where MLX computes with quantized weights on a CPU, nobody has measured a pass of several
    tokens: there, tokens are proposed only if a number of them was asked for.
    """
    if isinstance(asked, int):
        if not model.takes_blocks:
            raise UnsupportedModelError(
                f"no tokens can be proposed here, since {no_speculation(model)}: set speculation to"
                " auto"
            )
        return NgramProposer(Lengths(asked))
    unmeasured = on_cpu() and precision(model).bits is not None
    if asked == "off" or not model.takes_blocks or unmeasured:
        return None
    return NgramProposer(Lengths(costs=_costs(model)))


def _costs(model: LanguageModel) -> Costs:
    """Return what passes of several tokens cost on this machine."""
    batches = not on_cpu() or blas_batches()
    if model.mixes_experts or not (batches or isinstance(model, Model)):
        return ONE_BY_ONE
    return BATCHED if on_cpu() and batches else CAREFUL
