"""From what a request asks to the items of an order: messages and texts become tokens."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..settings import SEED_BITS
from .events import Item
from .openai.parse import Asked, Prompt

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def to_items(asked: Asked, tokenizer: TokenizerWrapper) -> list[Item]:
    """Return the answers of a request, those to one prompt next to one another.

    Raises:
        PromptError: a prompt is empty, or the chat template refuses the messages.
    """
    seed = asked.settings.seed
    first = secrets.randbits(SEED_BITS) if seed is None else seed
    prefix = _prefix(asked.prefix, tokenizer)
    items: list[Item] = []
    for prompt in asked.prompts:
        ids = (*_tokens(prompt, tokenizer), *prefix)
        for sample in range(asked.n):
            settings = replace(asked.settings, seed=first + sample)
            scored = asked.echo and asked.logprobs
            items.append(Item(len(items), ids, settings, asked.begin, scored))
    return items


def _tokens(prompt: Prompt, tokenizer: TokenizerWrapper) -> Sequence[int]:
    from ..api.prompts import conversation_prompt, text_prompt

    if isinstance(prompt, str):
        return text_prompt(tokenizer, prompt)
    messages = [message for message in prompt if isinstance(message, dict)]
    if messages:
        return conversation_prompt(tokenizer, messages)
    return [token for token in prompt if isinstance(token, int)]


def _prefix(prefix: str | tuple[int, ...], tokenizer: TokenizerWrapper) -> Sequence[int]:
    if isinstance(prefix, str):
        return list(tokenizer.encode(prefix, add_special_tokens=False))
    return prefix
