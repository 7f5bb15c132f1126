"""Measuring a text that is given: one prefill, in which every token is measured and none is drawn.

    tokens      the   sky   is   blue  .      a chunk of the text, computed in one pass
    states       ■     ■     ■    ■    ■      kept for the whole chunk: (tokens, hidden)
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

from ..answer.clock import Clock
from ..answer.position import Reading
from ..answer.writer import Writer
from ..engine.cached_text import CachedText
from ..engine.forward import Engine
from ..engine.job import Job, check_tokens
from ..engine.sampler_state import check_biased, first_state
from ..engine.scheduler import PREFILL_CHUNK
from ..errors import ContextLengthError, PromptError
from ..models.base import LanguageModel, Rows
from ..models.llama.attention import Looks
from ..models.llama.cache import TextCache, Watched
from ..models.wired import wired_memory
from ..samplers.draw import uniforms
from ..samplers.position import Sampled, sample
from ..samplers.state import State
from ..settings import Settings
from ..step import Origin, Step
from .generate import parse_options, prompt_tokens

LOGITS_AT_ONCE = 2**22
"""Logits that are measured together: several arrays of that size are in memory then."""


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
    _check_room(len(before), len(tokens), model.config.max_position_embeddings, split)
    settings = settings.resolved(model.config)
    sampler = settings.build_sampler()
    check_biased(sampler, model.config.vocab_size)
    job = Job.of_settings([*before, *tokens], settings, sampler, hooks=hooks)
    return _steps(model, tokenizer, job, len(before))


def text_tokens(
    tokenizer: TokenizerWrapper, text: str | Iterable[int], after: str | Iterable[int] | None
) -> tuple[list[int], list[int]]:
    """Return the tokens before a text, at least one, and those of the text.

    Args: as for `stream_score`.

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


def _check_room(before: int, tokens: int, context: int, split: bool) -> None:
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


def _steps(
    model: LanguageModel, tokenizer: TokenizerWrapper, job: Job, before: int
) -> Generator[Step, None, None]:
    """Yield the steps of a job's tokens that follow those `before` them."""
    prompt, count = job.prompt[:before], len(job.prompt) - before
    writer = Writer(tokenizer, job.sampler.position_score, count, clock=Clock(), prompt=prompt)
    state = first_state(job.sampler, tokenizer, model.config.vocab_size, prompt)
    told = 0
    with wired_memory.raised():
        for reading in _readings(model, job, before, state):
            if job.hooks.cancelled():
                return
            if job.hooks.on_prefill and told + PREFILL_CHUNK <= writer.index:
                told = writer.index
                job.hooks.on_prefill(told, count)
            yield writer.write(reading, Origin.READ)
    if job.hooks.on_prefill:
        job.hooks.on_prefill(count, count)


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


def _readings(model: LanguageModel, job: Job, before: int, state: State) -> Iterator[Reading]:
    """Yield what each position says about the token after it."""
    context = model.config.max_position_embeddings
    measuring = _Measuring(model, job, state)
    for begin, first, end in windows(len(job.prompt), before, context):
        engine, text = Engine(model), CachedText.empty(model)
        for at in range(begin, first - 1, PREFILL_CHUNK):
            engine.prefill(text, job.prompt[at : min(at + PREFILL_CHUNK, first - 1)])
        for at in range(first - 1, end - 1, PREFILL_CHUNK):
            yield from measuring.chunk(text.layers, at, min(at + PREFILL_CHUNK, end - 1))


class _Measuring:
    """Measures the positions of a text, chunk by chunk."""

    def __init__(self, model: LanguageModel, job: Job, state: State) -> None:
        self._model = model
        self._job = job
        self._memory = job.sampler.remembered
        self._state = state
        self._block = max(1, LOGITS_AT_ONCE // model.config.vocab_size)

    def chunk(self, layers: Sequence[TextCache], begin: int, end: int) -> Iterator[Reading]:
        """Compute the tokens from `begin` to `end`, and yield what follows each of them."""
        if not self._model.measures_runs:
            yield from self._one_by_one(layers, begin, end)
            return
        tokens = mx.array([list(self._job.prompt[begin:end])])
        watched = [Watched(layer) for layer in layers]
        states, looks = self._model.states(tokens, watched, self._job.attention_layers)
        mx.async_eval(states)
        # Where the sampler remembers the text, each position is planned after the one before it.
        block = 1 if self._memory else self._block
        for first in range(begin, end, block):
            last = min(first + block, end)
            inside = slice(first - begin, last - begin)
            of_block = [
                look.part(inside.start, inside.stop) for look in looks if isinstance(look, Looks)
            ]
            queued = self._queue(self._model.head(states[:, inside])[0], of_block, first)
            for read in queued.read():
                yield Reading(*read).checked()
        mx.clear_cache()

    def _one_by_one(self, layers: Sequence[TextCache], begin: int, end: int) -> Iterator[Reading]:
        """Do the same with a pass a token, where only the last token of a pass is measured."""
        for at in range(begin, end):
            rows = Rows(layers, mx.array([self._job.prompt[at]]))
            forward = self._model.step([rows], self._job.attention_layers)
            scores = [layer[0] for layer in forward.scores if isinstance(layer, tuple)]
            for read in self._queue(forward.logits[:, -1], scores, at).read():
                reading = Reading(*read).checked()
                yield reading if forward.attended else reading.without_attention()

    def _queue(self, logits: mx.array, looks: Sequence[Any], first: int) -> Sampled:
        """Start measuring some positions that follow one another."""
        job, count = self._job, logits.shape[0]
        given = mx.array(list(job.prompt[first + 1 : first + 1 + count]))
        draws = job.sampler.draws
        randomness = [uniforms(job.seed, at, draws) for at in range(first + 1, first + 1 + count)]
        queued = sample(
            job.sampler, logits, [looks], mx.array(randomness), job.top_logprobs, self._state, given
        )
        if self._memory:
            self._state = self._memory.observe(queued.state, given, queued.logprob)
        return queued
