"""What is asked of the decode core: one answer, and how it is to be generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.answer import Answer
from ..answer.clock import Clock
from ..answer.hooks import Hooks
from ..answer.interventions.forks import Branching
from ..answer.interventions.retrieval import Retrieving
from ..answer.interventions.thinking import Thinking
from ..answer.writer import Writer
from ..errors import ContextLengthError, PromptError, UnsupportedModelError
from ..models.base import AttentionLayers, LanguageModel
from ..models.llama.model import Model
from ..models.llama.weight_layout import blas_batches, on_cpu, precision
from ..samplers.base import Sampler
from ..settings import Settings
from ..step import Step
from .cached_text import CachedText, Prompt
from .forward import Sampling
from .sampler_state import check_biased, remembering
from .slot import Slot
from .speculation.draft_model import (
    Drafting,
    FirstOf,
    cannot_be_drafted,
    untakeable,
)
from .speculation.ngram import Lookup
from .speculation.proposer import (
    BATCHED,
    CAREFUL,
    ONE_BY_ONE,
    Costs,
    Guesser,
    Lengths,
)


@dataclass(frozen=True)
class Job:
    """One answer to generate."""

    prompt: Sequence[int]
    """Token ids; at least one."""
    sampler: Sampler
    seed: int
    """With the position in the text, all that a draw depends on."""
    max_tokens: int = -1
    """−1 for as many as the context holds."""
    attention_layers: AttentionLayers = "last"
    top_logprobs: int = 0
    lookup: str | int = "off"
    """Tokens to look up in the text, as in `Settings`."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer and are no part of it."""
    answered: Sequence[Step] = ()
    """The steps of an answer that is taken up again; the prompt ends with their tokens."""
    forced: Sequence[int] = ()
    """Tokens to commit first, whatever is drawn; the user's choice."""
    hooks: Hooks = field(default_factory=Hooks)

    @classmethod
    def of_settings(
        cls, prompt: Sequence[int], settings: Settings, sampler: Sampler | None = None, **more: Any
    ) -> Job:
        """Return the job that resolved settings describe.

        Args:
            prompt: token ids.
            settings: from `Settings.resolved`.
            sampler: theirs, where it was built before.
            **more: other fields of the job.
        """
        if settings.seed is None:
            raise ValueError("the settings must be resolved: they have no seed")
        return cls(
            prompt,
            sampler or settings.build_sampler(),
            settings.seed,
            max_tokens=settings.max_tokens,
            attention_layers=settings.attention_layers,
            top_logprobs=settings.top_logprobs,
            lookup=settings.speculation,
            stop=settings.stop,
            **more,
        )


def prepare(model: LanguageModel, text: CachedText, job: Job, *, shared: bool = False) -> Prompt:
    """Return the prompt of a job, shortening the text to what the two have in common.

    Args:
        model: the text's.
        text: what is in the cache; the job's prompt follows the tokens whose ids are not known.
        job: see above.
        shared: whether other answers go on from the same prompt.

    Raises:
        PromptError: the prompt is empty, or holds a token that the model does not have.
        SamplerError: a bias is of a token that the model does not have.
        ContextLengthError: the prompt leaves no room in the context.
    """
    if not job.prompt:
        raise PromptError("the prompt is empty: give at least one token")
    check_tokens([*job.prompt, *job.forced], model.config.vocab_size)
    check_biased(job.sampler, model.config.vocab_size)
    # The last token must be computed again: what follows it was not kept.
    text.shorten(text.common(job.prompt[:-1]))
    _check_room(model, text.base + len(job.prompt))
    return Prompt(text, job.prompt[len(text.ids) : -1], shared)


def begin(
    model: LanguageModel, tokenizer: TokenizerWrapper, job: Job, prompt: Prompt
) -> Slot | None:
    """Return the row of a job, or None where it may not have a single token.

    Raises:
        ProfileError: the thinking text, or what a judge is asked, does not fit the tokenizer.
        TokenizerError: the draft model reads other tokens.
        UnsupportedModelError: guesses were asked for, and cannot be made for this model.
    """
    config = model.config
    start = prompt.text.base + len(job.prompt)
    context_room = config.max_position_embeddings - start
    room = context_room if job.max_tokens < 0 else min(job.max_tokens, context_room)
    if room == 0:
        return None
    clock = Clock()
    sampler, retrieve = job.sampler, job.hooks.retrieve
    limit = len(job.answered) + room
    before = job.prompt[: len(job.prompt) - len(job.answered)]
    answer = Answer(
        Writer(tokenizer, sampler.position_score, limit, job.stop, clock, before),
        Thinking(sampler.think, tokenizer, config.vocab_size, before),
        Branching(
            sampler.branches,
            tokenizer,
            job.hooks.on_fork,
            seed=job.seed,
            prompt=before,
            stops=job.stop,
        ),
        Retrieving(sampler.profile.notes, tokenizer, retrieve) if retrieve else None,
        before=job.prompt,
        context_room=context_room,
        asks=job.hooks.choose is not None,
        cancelled=job.hooks.cancelled,
    )
    answer.take_up(job.answered)
    guesser = _guesser(model, tokenizer, job, prompt.text.base)
    sampling = Sampling(sampler, job.seed, job.attention_layers, job.top_logprobs, guesser)
    return Slot(
        answer,
        prompt,
        job.prompt[-1],
        sampling,
        forced=job.forced,
        hooks=job.hooks,
        clock=clock,
        remembering=remembering(sampler, tokenizer, config.vocab_size, before, job.answered),
    )


def _guesser(
    model: LanguageModel, tokenizer: TokenizerWrapper, job: Job, unknown: int
) -> Guesser | None:
    """Return what guesses the tokens of an answer on this machine; None for no guesses.

    Args:
        model: the one that answers.
        tokenizer: its tokenizer.
        job: the answer.
        unknown: tokens of its text whose ids are not known.
    """
    lookup, draft = _lookup(model, job), job.hooks.draft_model
    if draft is None:
        return lookup
    draft.check(model, tokenizer)
    if unknown:
        raise cannot_be_drafted(f"the cache that was given holds {unknown} tokens of unknown text")
    drafting = Drafting(draft, job.sampler, job.seed, model.config.vocab_size)
    return drafting if lookup is None else FirstOf(lookup, drafting)


def _lookup(model: LanguageModel, job: Job) -> Lookup | None:
    """Return what looks guesses up in the text; None for nothing.

    Where MLX computes with quantized weights on a CPU, nobody has measured a pass of several
    tokens: guesses are made only if a length was asked for.

    Raises:
        UnsupportedModelError: a length was asked for, and the model cannot take guesses back.
    """
    if isinstance(job.lookup, int):
        if not model.takes_runs:
            raise UnsupportedModelError(
                f"no tokens can be guessed here, since {untakeable(model)}: set speculation to auto"
            )
        return Lookup(Lengths(job.lookup))
    unmeasured = on_cpu() and precision(model).bits is not None
    if job.lookup == "off" or not model.takes_runs or unmeasured:
        return None
    return Lookup(Lengths(costs=_costs(model)))


def _costs(model: LanguageModel) -> Costs:
    """Return what passes of several tokens cost on this machine."""
    batches = not on_cpu() or blas_batches()
    if model.mixes_experts or not (batches or isinstance(model, Model)):
        return ONE_BY_ONE
    return BATCHED if on_cpu() and batches else CAREFUL


def check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Check that a model has some tokens.

    Raises:
        PromptError: it does not.
    """
    # MLX reads beyond an embedding without a word.
    if beyond := [token for token in tokens if not 0 <= token < vocab_size]:
        raise PromptError(
            f"there is no token {beyond[0]} in this model, which has {vocab_size}: leave that text"
            " out, or use the tokenizer that the model was trained with"
        )


def _check_room(model: LanguageModel, prompt_tokens: int) -> None:
    context = model.config.max_position_embeddings
    if prompt_tokens >= context:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens, and the model's context holds {context}, the"
            " answer included: shorten the prompt"
        )
