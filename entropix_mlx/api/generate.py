"""From a prompt to text: under the names that mlx-lm uses."""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Unpack

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..answer.selection import AnswerSelection
from ..engine.sequence import Sequence as TextSequence
from ..errors import PromptError, SettingsError
from ..models.base import LanguageModel
from ..profiles.fields import hint, shown
from ..settings import Options, Settings, described
from ..step import Step
from .prompts import text_prompt
from .runner import Runner


def stream_generate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Iterable[int],
    settings: Settings | None = None,
    *,
    hooks: Hooks | None = None,
    prompt_cache: list[Any] | None = None,
    pipelined: bool = True,
    **options: Unpack[Options],
) -> Iterator[Step]:
    """Generate from a prompt, one `Step` a token.

    With several `answers`, the steps are those of the chosen one; see `stream_answers`.

    Args:
        model, tokenizer: from `load`.
        prompt: token ids, such as `chat_prompt` returns, or a text to continue.
        settings: how to generate.
        hooks: functions that stop, watch and steer the generation.
        prompt_cache: from ``model.make_cache()``, or mlx-lm's `load_prompt_cache`, holding the
            tokens before the prompt.
        pipelined: False reads every token before the next is queued; slower, and the same steps.
        **options: fields of `Settings`, as in ``max_tokens=40, seed=1``; they replace those of
            `settings`.

    Raises:
        EntropixError: one of its kinds, saying what is wrong and what to do.
        TypeError: an option is unknown, or a value that a program passed is of a wrong type.
    """
    chosen = with_options(settings, options)
    runner, first = _added(model, tokenizer, prompt, chosen, hooks, prompt_cache, pipelined)
    return runner.stream(first)


def stream_answers(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Iterable[int],
    settings: Settings | None = None,
    *,
    hooks: Hooks | None = None,
    prompt_cache: list[Any] | None = None,
    **options: Unpack[Options],
) -> tuple[AnswerSelection, Generator[tuple[int, Step], None, None]]:
    """Generate several answers to a prompt, as its setting `answers` says, and choose one.

        several, steps = stream_answers(model, tokenizer, prompt, answers="auto")
        for number, step in steps:  # the first answer is number 0
            ...
        print(several.chosen.text, several)

    Takes the arguments of `stream_generate`; a `prompt_cache` holds the prompt afterwards. You may
    leave the loop: the answers that are complete by then can be chosen.

    Raises:
        EntropixError: one of its kinds, saying what is wrong and what to do.
        SettingsError: `answers` is 1.
    """
    chosen = with_options(settings, options)
    runner, first = _added(model, tokenizer, prompt, chosen, hooks, prompt_cache)
    if (selection := runner.selection(first)) is None:
        raise SettingsError("one answer was asked for: set answers, or use stream_generate")
    return selection, runner.stream_all(first)


def generate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Iterable[int],
    settings: Settings | None = None,
    *,
    hooks: Hooks | None = None,
    prompt_cache: list[Any] | None = None,
    **options: Unpack[Options],
) -> str:
    """Return the text of an answer; takes the arguments of `stream_generate`."""
    chosen = with_options(settings, options)
    runner, first = _added(model, tokenizer, prompt, chosen, hooks, prompt_cache)
    return "".join(step.text for step in runner.stream(first))


def _added(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Iterable[int],
    settings: Settings,
    hooks: Hooks | None,
    cache: list[Any] | None,
    pipelined: bool = True,
) -> tuple[Runner, TextSequence]:
    tokens = prompt_tokens(tokenizer, prompt)
    resolved = settings.resolved(model.config)
    runner = Runner(model, tokenizer, size=resolved.most_answers, pipelined=pipelined)
    return runner, runner.add(tokens, resolved, hooks, cache=cache)


def with_options(settings: Settings | None, options: Options) -> Settings:
    """Return settings with the options that replace some of their fields. Raises `TypeError` if an
    option is unknown, or what stands for the settings is something else."""
    if settings is not None and not isinstance(settings, Settings):
        named = f"max_tokens={settings}" if isinstance(settings, int) else "its options by name"
        raise TypeError(f"the fourth argument is a Settings, not {shown(settings)}: pass {named}")
    for name in options:
        if name not in described():
            raise TypeError(f"there is no option {name}; {hint(name, tuple(described()))}")
    return replace(settings or Settings(), **options)


def prompt_tokens(tokenizer: TokenizerWrapper, prompt: str | Iterable[int]) -> list[int]:
    """Return the token ids of a prompt: a text to continue, or the ids, also in an array. Raises
    `PromptError` if it is empty, or neither a text nor token ids."""
    if isinstance(prompt, str):
        return text_prompt(tokenizer, prompt)
    values = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(values, (bytes, Mapping)) or not isinstance(values, Iterable):
        raise PromptError(f"prompt must be a text or token ids, not {shown(prompt)}")
    return [_token_id(value) for value in values]


def _token_id(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise PromptError(f"prompt must hold token ids, not {shown(value)}") from None
