"""From a prompt to text: under the names that mlx-lm uses."""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..answer.selection import AnswerSelection
from ..engine.sequence import Sequence as TextSequence
from ..errors import PromptError, SettingsError
from ..models.base import LanguageModel
from ..profiles.fields import hint, shown
from ..settings import Settings
from ..step import Step
from .prompts import text_prompt
from .runner import Runner

_SETTINGS = tuple(f.name for f in fields(Settings))
_HOOKS = tuple(f.name for f in fields(Hooks))


def stream_generate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Iterable[int],
    settings: Settings | None = None,
    *,
    prompt_cache: list[Any] | None = None,
    pipelined: bool = True,
    **options: Any,
) -> Iterator[Step]:
    """Generate from a prompt, one `Step` a token.

    With several `answers`, the steps are those of the chosen one; see `stream_answers`.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompt: token ids, such as `chat_prompt` returns, or a text to continue.
        settings: how to generate.
        prompt_cache: from ``model.make_cache()``, or mlx-lm's `load_prompt_cache`, holding the
            tokens before the prompt.
        pipelined: False reads every token before the next is queued; slower, and the same steps.
        **options: any fields of `Settings`, which replace those of `settings`, as in
            ``max_tokens=40, seed=1``, and any of `Hooks`: `cancel`, `on_prefill`, `choose`,
            `on_fork` and `retrieve`.

    Raises:
        EntropixError: one of its kinds, saying what is wrong and what to do.
        TypeError: an option is unknown, or a value that a program passed is of a wrong type.
    """
    runner, first = _added(model, tokenizer, prompt, settings, options, prompt_cache, pipelined)
    return runner.stream(first)


def stream_answers(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Iterable[int],
    settings: Settings | None = None,
    *,
    prompt_cache: list[Any] | None = None,
    **options: Any,
) -> tuple[AnswerSelection, Generator[tuple[int, Step], None, None]]:
    """Generate several answers to a prompt, as its setting `answers` says, and choose one.

        several, steps = stream_answers(model, tokenizer, prompt, answers="auto")
        for number, step in steps:  # the first answer is number 0
            ...
        print(several.chosen.text, several)

    Takes the arguments of `stream_generate`; a `prompt_cache` holds the prompt afterwards. A loop
    may be left: what is complete by then is what can be chosen.

    Raises:
        EntropixError: one of its kinds, saying what is wrong and what to do.
        SettingsError: `answers` is 1.
    """
    runner, first = _added(model, tokenizer, prompt, settings, options, prompt_cache)
    if (selection := runner.selection(first)) is None:
        raise SettingsError("one answer was asked for: set answers, or use stream_generate")
    return selection, runner.stream_all(first)


def generate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Iterable[int],
    settings: Settings | None = None,
    **options: Any,
) -> str:
    steps = stream_generate(model, tokenizer, prompt, settings, **options)
    return "".join(step.text for step in steps)


def _added(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Iterable[int],
    settings: Settings | None,
    options: Mapping[str, Any],
    prompt_cache: list[Any] | None,
    pipelined: bool = True,
) -> tuple[Runner, TextSequence]:
    settings, hooks = parse_options(settings, options)
    tokens = prompt_tokens(tokenizer, prompt)
    resolved = settings.resolved(model.config)
    runner = Runner(model, tokenizer, size=resolved.most_answers, pipelined=pipelined)
    return runner, runner.add(tokens, resolved, hooks, cache=prompt_cache)


def prompt_tokens(tokenizer: TokenizerWrapper, prompt: str | Iterable[int]) -> list[int]:
    """Return the token ids of a prompt: a text to continue, or the ids themselves.

    Raises:
        PromptError: it is empty, or neither of both.
    """
    return text_prompt(tokenizer, prompt) if isinstance(prompt, str) else _token_ids(prompt)


def parse_options(
    settings: Settings | None,
    options: Mapping[str, Any],
    others: Sequence[str] = ("prompt_cache", "pipelined"),
) -> tuple[Settings, Hooks]:
    """Return settings and hooks with the options that replace some of their fields.

    Args:
        settings, options: the settings, and by name what replaces fields of them.
        others: names that the caller reads itself, for the message about an unknown one.

    Raises:
        TypeError: an option is unknown, or what stands for the settings is something else.
    """
    if settings is not None and not isinstance(settings, Settings):
        named = f"max_tokens={settings}" if isinstance(settings, int) else "its options by name"
        raise TypeError(f"the fourth argument is a Settings, not {shown(settings)}: pass {named}")
    for name in options:
        if name not in (*_SETTINGS, *_HOOKS):
            known = (*_SETTINGS, *_HOOKS, *others)
            raise TypeError(f"there is no option {name}; {hint(name, known)}")
    given = {name: value for name, value in options.items() if name in _SETTINGS}
    hooks = {name: value for name, value in options.items() if name in _HOOKS}
    if given.get("changes", {}) is None:
        given["changes"] = {}
    return replace(settings or Settings(), **given), Hooks(**hooks)


def _token_ids(prompt: Iterable[int]) -> list[int]:
    """Return token ids as plain numbers; they may come as an array of NumPy's or MLX's."""
    listed = getattr(prompt, "tolist", None)
    values = listed() if listed else prompt
    if isinstance(values, (bytes, Mapping)) or not isinstance(values, Iterable):
        raise PromptError(f"prompt must be a text or token ids, not {shown(prompt)}")
    return [_token_id(value) for value in values]


def _token_id(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise PromptError(f"prompt must hold token ids, not {shown(value)}") from None
