"""Measuring a text that is given: one prefill, in which every token is measured and none is drawn.

    tokens      the   sky   is   blue  .      a chunk of the text, computed in one pass
    states       ■     ■     ■    ■    ■      held for the whole chunk: (tokens, hidden)
    logits      └─ block ─┘ └─ block ─┘       computed for a block, measured, and dropped again
    step             sky   is   blue  .       what each position says about the token after it

The logits of a long text would fill the memory, as its attention scores would; so both are computed
from what is small, the last states and the queries, in blocks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..answer.position import Position
from ..answer.writer import Clock, Writer
from ..engine.cached_text import CachedText
from ..engine.constrained import constrained_text
from ..engine.forward import LOGITS_AT_ONCE, Engine
from ..engine.runner import check_tokens
from ..engine.sampler_state import check_biased, first_state
from ..errors import ContextLengthError, PromptError
from ..models.base import LanguageModel, Rows
from ..models.device import prefill_chunk
from ..models.llama.attention import AttentionQueries
from ..models.llama.cache import BlockCache, TextCache
from ..models.memory import wired_memory
from ..samplers.distribution import distribution, plan_of
from ..samplers.draw import uniforms
from ..samplers.position import Sampled, sample
from ..settings import ResolvedSettings, Settings
from ..step import DrawDistribution, Origin, Step
from .generate import parse_options, prompt_tokens


def score(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    text: str | Iterable[int],
    settings: Settings | None = None,
    **options: Any,
) -> list[Step]:
    """Return a `Step` for every token of a text; takes the arguments of `stream_score`."""
    return list(stream_score(model, tokenizer, text, settings, **options))


def stream_score(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    text: str | Iterable[int],
    settings: Settings | None = None,
    *,
    after: str | Iterable[int] | None = None,
    split: bool = False,
    **options: Any,
) -> Iterator[Step]:
    """Measure a text, one `Step` a token: its log probability, and what the sampler would decide.

    The steps are those of a generation that was forced to write the text, with the origin `read`.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        text: a text, or token ids.
        settings: the sampler and its profile, the attention layers, `top_logprobs`.
        after: what precedes the text and is not measured, such as `chat_prompt` returns. None is
            the token with which the tokenizer begins a text.
        split: whether a text that is longer than the context is measured in pieces, of which each
            is read after at most half a context of what comes before it.
        **options: any fields of `Settings` and of `Hooks`, as for `stream_generate`.

    Raises:
        PromptError: the text is empty, or holds a token that the model does not have.
        ContextLengthError: the text is longer than the context.
        EntropixError: another of its kinds, saying what is wrong and what to do.
    """
    settings, hooks = parse_options(settings, options, ("after", "split"))
    before, tokens = text_tokens(tokenizer, text, after)
    check_tokens([*before, *tokens], model.config.vocab_size)
    check_room(len(before), len(tokens), model.config.max_position_embeddings, split)
    resolved = settings.resolved(model.config)
    check_biased(resolved.sampler, model.config.vocab_size)
    return _Measuring(model, tokenizer, resolved, hooks, before, tokens).steps()


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
    row = measuring.last.row(measuring.last.token.shape[0] - 1)
    plan = plan_of(last.strategy, last.temperature, last.top_p, last.top_k, last.min_p)
    mask, count = None, resolved.settings.top_logprobs
    if (constraint := resolved.settings.constraint) is not None:
        vocab = model.config.vocab_size
        allowed = constrained_text(constraint, tokenizer, vocab, prompt, tokens[:-1])
        mask = allowed.mask([0], ())
    return distribution(row, plan, resolved.sampler.drawing, count, last.token, mask)


def text_tokens(
    tokenizer: TokenizerWrapper, text: str | Iterable[int], after: str | Iterable[int] | None
) -> tuple[list[int], list[int]]:
    """Return the tokens before a text, at least one, and those of the text.

    Raises:
        PromptError: the text is empty.
    """
    if after is not None:
        before = prompt_tokens(tokenizer, after)
        if isinstance(text, str):  # in the middle of a text, no token begins one
            text = tokenizer.encode(text, add_special_tokens=False)
        tokens = prompt_tokens(tokenizer, text)
    else:
        tokens = prompt_tokens(tokenizer, text)
        begin = begin_token(tokenizer)
        before = [begin]
        if tokens[:1] == before:
            del tokens[0]
    if not (before and tokens):
        raise PromptError("the text is empty: there is nothing to measure")
    return before, tokens


def begin_token(tokenizer: TokenizerWrapper) -> int:
    """Return the token that begins a text, or where there is none, the one that ends a text."""
    if tokenizer.bos_token_id is not None:
        return int(tokenizer.bos_token_id)
    if not tokenizer.eos_token_ids:
        raise PromptError(
            "this tokenizer has no token that begins a text: say what the text comes after"
        )
    return int(min(tokenizer.eos_token_ids))


def check_room(before: int, tokens: int, context: int, split: bool) -> None:
    if before >= context:
        raise ContextLengthError(
            f"what precedes the text has {before:,} tokens, and the model's context holds"
            f" {context:,}: shorten it"
        )
    if not split and before + tokens > context:
        raise ContextLengthError(
            f"the text has {tokens:,} tokens, and the model's context holds {context:,}, with what"
            " precedes the text: shorten it, or have it split into pieces (--split, split=True)"
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
        sampler, vocab = resolved.sampler, model.config.vocab_size
        self._writer = Writer(
            tokenizer, sampler.profile.position_score, len(tokens), clock=Clock(), prompt=before
        )
        self._memory = sampler.remembered
        self._state = first_state(sampler, tokenizer, vocab, before)
        self._block = max(1, LOGITS_AT_ONCE // vocab)
        self.last: Sampled
        """The newest positions."""

    def steps(self) -> Generator[Step, None, None]:
        reported, count = 0, len(self._tokens) - self._first
        chunk = prefill_chunk()
        with wired_memory.raised():
            for position in self._positions():
                if self._hooks.cancelled():
                    return
                if reported + chunk <= self._writer.index:
                    reported = self._writer.index
                    self._report(reported, count)
                yield self._writer.write(position, Origin.READ)
        self._report(count, count)

    def _report(self, done: int, total: int) -> None:
        if self._hooks.on_prefill:
            self._hooks.on_prefill(done, total)

    def _positions(self) -> Iterator[Position]:
        context, chunk = self._model.config.max_position_embeddings, prefill_chunk()
        for begin, first, end in windows(len(self._tokens), self._first, context):
            engine, text = Engine(self._model), CachedText.empty(self._model)
            for at in range(begin, first - 1, chunk):
                engine.prefill(text, self._tokens[at : min(at + chunk, first - 1)])
            for at in range(first - 1, end - 1, chunk):
                yield from self._chunk(text.layers, at, min(at + chunk, end - 1))

    def _chunk(self, layers: Sequence[TextCache], begin: int, end: int) -> Iterator[Position]:
        if not self._model.measures_blocks:
            yield from self._one_by_one(layers, begin, end)
            return
        tokens = mx.array([self._tokens[begin:end]])
        watched = [BlockCache(layer) for layer in layers]
        attention_layers = self._resolved.settings.attention_layers
        states, queries = self._model.states(tokens, watched, attention_layers)
        mx.async_eval(states)
        # Where the sampler remembers the text, each position is planned after the one before it.
        block = 1 if self._memory else self._block
        for first in range(begin, end, block):
            last = min(first + block, end)
            inside = slice(first - begin, last - begin)
            of_block = [
                each.part(inside.start, inside.stop)
                for each in queries
                if isinstance(each, AttentionQueries)
            ]
            sampled = self._sample(self._model.head(states[:, inside])[0], of_block, first)
            for row in sampled.read():
                yield Position(*row).checked()
        mx.clear_cache()

    def _one_by_one(self, layers: Sequence[TextCache], begin: int, end: int) -> Iterator[Position]:
        """Do the same with a pass a token, where only the last token of a pass is measured."""
        for at in range(begin, end):
            rows = Rows(layers, mx.array([self._tokens[at]]))
            forward = self._model.step([rows], self._resolved.settings.attention_layers)
            scores = [layer[0] for layer in forward.scores if isinstance(layer, tuple)]
            for row in self._sample(forward.logits[:, -1], scores, at).read():
                position = Position(*row).checked()
                yield position if forward.attended else position.without_attention()

    def _sample(self, logits: mx.array, scores: Sequence[Any], first: int) -> Sampled:
        resolved, count = self._resolved, logits.shape[0]
        given = mx.array(self._tokens[first + 1 : first + 1 + count])
        places = range(first + 1, first + 1 + count)
        draws = resolved.sampler.draws
        randomness = mx.array([uniforms(resolved.seed, at, draws) for at in places])
        sampled = sample(
            resolved.sampler,
            logits,
            [scores],
            randomness,
            resolved.settings.top_logprobs,
            self._state,
            given,
        )
        self.last = sampled
        if self._memory:
            self._state = self._memory.observe(sampled.state, given, sampled.logprob)
        return sampled
