"""Measuring a text: one prefill, in which every token is measured and none is drawn.

    tokens      the   sky   is   blue  .      a chunk of the text, computed in one pass
    step             sky   is   blue  .       what each position says about the token after it

A chunk has as many tokens as the memory allows for their logits and attention scores.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Unpack

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..answer.writer import Clock, Writer
from ..engine.constrained import constrained
from ..engine.prompts import LOGITS_AT_ONCE, read_prompt
from ..engine.sequence import check_tokens
from ..errors import ContextLengthError, PromptError
from ..models.base import LanguageModel
from ..models.device import prefill_chunk
from ..samplers.distribution import distribution, plan_of
from ..samplers.draw import uniforms
from ..samplers.logit_processors import WINDOW
from ..samplers.metrics import measure_attention
from ..samplers.position import Sampled, sample
from ..samplers.row import Row
from ..settings import Options, ResolvedSettings, Settings
from ..step import DrawDistribution, Origin, Step
from .generate import prompt_tokens, with_options

SCORES_AT_ONCE = 2**21  # attention scores of one layer that are in memory at once


def score(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    text: str | Iterable[int],
    settings: Settings | None = None,
    *,
    after: str | Iterable[int] | None = None,
    split: bool = False,
    **options: Unpack[Options],
) -> list[Step]:
    """Return a `Step` for every token of a text; takes the arguments of `stream_score`."""
    chosen = with_options(settings, options)
    return list(stream_score(model, tokenizer, text, chosen, after=after, split=split))


def stream_score(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    text: str | Iterable[int],
    settings: Settings | None = None,
    *,
    after: str | Iterable[int] | None = None,
    split: bool = False,
    hooks: Hooks | None = None,
    **options: Unpack[Options],
) -> Iterator[Step]:
    """Measure a text, one `Step` a token: its log probability, and what the sampler would decide.

    The steps are those of a generation that was forced to write the text, with the origin `read`.

    Args:
        model, tokenizer: from `load`.
        text: a text, or token ids.
        settings: the sampler and its profile, the attention layers, `top_logprobs`.
        after: what precedes the text and is not measured, such as `chat_prompt` returns. None is
            the token with which the tokenizer begins a text.
        split: whether a text that is longer than the context is measured in pieces, of which each
            is read after at most half a context of what comes before it.
        hooks: `cancel` stops the measuring, and `on_prefill` is called with the tokens that were
            measured and their number.
        **options: fields of `Settings`, as for `stream_generate`.

    Raises:
        PromptError: the text is empty, or holds a token that the model does not have.
        ContextLengthError: the text is longer than the context.
        EntropixError: another of its kinds, saying what is wrong and what to do.
    """
    before, tokens = text_tokens(tokenizer, text, after)
    check_tokens([*before, *tokens], model.config.vocab_size)
    check_room(len(before), len(tokens), model.config.max_position_embeddings, split)
    resolved = with_options(settings, options).resolved(model.config)
    if resolved.sampler.penalties is not None:
        resolved.sampler.penalties.check(model.config.vocab_size)
    return _Measuring(model, tokenizer, resolved, hooks or Hooks(), before, tokens).steps()


def distribution_after(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
    steps: Sequence[Step],
    resolved: ResolvedSettings,
) -> DrawDistribution:
    """Return what the last step of an answer was drawn from, with the parameters that it states.

    The answer is read again up to that step, in one prefill.
    """
    tokens, last = [step.token for step in steps], steps[-1]
    measuring = _Measuring(model, tokenizer, resolved, Hooks(), prompt, tokens)
    for _ in measuring.steps():
        pass
    row = measuring.last.token.shape[0] - 1
    plan = plan_of(last.strategy, last.temperature, last.top_p, last.top_k, last.min_p)
    mask, count = None, resolved.settings.top_logprobs
    if (constraint := resolved.settings.constraint) is not None:
        allowed = constrained(constraint, tokenizer, model.config.vocab_size, prompt)
        for token in tokens[:-1]:
            allowed.add(token)
        masks = allowed.masks()
        mask = None if masks is None else mx.array(masks[0])
    return distribution(measuring.last, row, plan, count, last.token, mask)


def text_tokens(
    tokenizer: TokenizerWrapper, text: str | Iterable[int], after: str | Iterable[int] | None
) -> tuple[list[int], list[int]]:
    """Return the tokens before a text, at least one, and those of the text. Raises `PromptError` if
    the text is empty."""
    if after is not None:
        before = prompt_tokens(tokenizer, after)
        if isinstance(text, str):  # in the middle of a text, no token begins one
            text = tokenizer.encode(text, add_special_tokens=False)
        tokens = prompt_tokens(tokenizer, text)
    else:
        tokens = prompt_tokens(tokenizer, text)
        before = [_begin_token(tokenizer)]
        if tokens[:1] == before:
            del tokens[0]
    if not (before and tokens):
        raise PromptError("the text is empty: there is nothing to measure")
    return before, tokens


def _begin_token(tokenizer: TokenizerWrapper) -> int:
    """Return the token that begins a text, or where there is none, the one that ends a text."""
    begins = tokenizer.bos_token_id
    if begins is None and not tokenizer.eos_token_ids:
        raise PromptError(
            "this tokenizer has no token that begins a text: say what the text comes after"
        )
    return int(min(tokenizer.eos_token_ids) if begins is None else begins)


def check_room(before: int, tokens: int, context: int, split: bool) -> None:
    """Check that a text and what precedes it fit into a context; all numbers are of tokens. Raises
    `ContextLengthError` if they do not."""
    if before >= context:
        raise ContextLengthError(
            f"what precedes the text has {before:,} tokens, and the model's context holds"
            f" {context:,}: shorten it"
        )
    if not split and before + tokens > context:
        raise ContextLengthError(
            f"the text has {tokens:,} tokens, and the model's context holds {context:,}, with what"
            " precedes the text: shorten it, or have it split into pieces (split=True)"
        )


def windows(length: int, first: int, context: int) -> Iterator[tuple[int, int, int]]:
    """Yield the pieces in which a text fits into a context: (begin, first measured token, end).

    Args:
        length: of the text, with what precedes it.
        first: the first token to be measured.
        context: tokens of the longest piece.
    """
    begin, end = 0, min(length, context)
    yield begin, first, end
    while end < length:
        first, begin = end, end - context // 2
        end = min(length, begin + context)
        yield begin, first, end


class _Measuring:
    """Measures the positions of a text, chunk by chunk."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        resolved: ResolvedSettings,
        hooks: Hooks,
        before: Sequence[int],
        tokens: Sequence[int],
    ) -> None:
        self._model = model
        self._resolved = resolved
        self._hooks = hooks
        self._first = len(before)
        self._tokens = [*before, *tokens]
        self._writer = Writer(
            tokenizer, resolved.profile.position_score, len(tokens), clock=Clock(), prompt=before
        )
        self.last: Sampled  # the newest positions

    def steps(self) -> Generator[Step, None, None]:
        count = len(self._tokens) - self._first
        for number, row in enumerate(self._rows()):
            if self._hooks.cancelled():
                return
            if number and number % prefill_chunk() == 0:
                self._report(number, count)
            yield self._writer.write(row, Origin.READ)
        self._report(count, count)

    def _report(self, done: int, total: int) -> None:
        if self._hooks.on_prefill:
            self._hooks.on_prefill(done, total)

    def _rows(self) -> Iterator[Row]:
        context, chunk = self._model.config.max_position_embeddings, prefill_chunk()
        for begin, first, end in windows(len(self._tokens), self._first, context):
            cache = self._model.make_cache()
            for at in range(begin, first - 1, chunk):
                read_prompt(self._model, self._tokens[at : min(at + chunk, first - 1)], cache)
            size = self._size(end - begin)
            for at in range(first - 1, end - 1, size):
                yield from self._chunk(cache, at, min(at + size, end - 1))

    def _size(self, keys: int) -> int:
        """Return how many positions are measured at once, with at most so many keys."""
        of_logits = LOGITS_AT_ONCE // self._model.config.vocab_size
        heads = max(self._model.attention_heads, default=1)
        return max(1, min(prefill_chunk(), of_logits, SCORES_AT_ONCE // (heads * keys)))

    def _chunk(self, cache: list[Any], begin: int, end: int) -> Iterator[Row]:
        """Yield the rows that follow the tokens from one place to another."""
        settings, sampler = self._resolved.settings, self._resolved.sampler
        tokens = mx.array([self._tokens[begin:end]])
        forward = self._model(tokens, cache, settings.attention_layers, queries=end - begin)
        attention = (
            measure_attention([layer[0] for layer in forward.scores]) if forward.scores else None
        )
        draws = [
            uniforms(self._resolved.seed, at, sampler.draws) for at in range(begin + 1, end + 1)
        ]
        self.last = sample(
            sampler,
            forward.logits[0],
            attention,
            mx.array(draws),
            settings.top_logprobs,
            given=mx.array(self._tokens[begin + 1 : end + 1]),
            changed=self._penalized(forward.logits[0], begin),
        )
        for row in self.last.read():
            checked = row.checked()
            yield checked if forward.scores else checked.without_attention()

    def _penalized(self, logits: mx.array, begin: int) -> mx.array | None:
        """Return `(n, vocab)` logits with the penalties of the text before each of n positions."""
        penalties = self._resolved.sampler.penalties
        if penalties is None:
            return None
        rows = []
        for row in range(logits.shape[0]):
            after = begin + row + 1
            seen = mx.array(self._tokens[:after][-WINDOW:])
            rows.append(penalties(logits[row : row + 1], seen, after - self._first))
        return mx.concatenate(rows)
