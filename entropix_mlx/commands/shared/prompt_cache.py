"""A prompt that goes on from a cached one, and an answer that goes on from a given text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import PromptError, UnsupportedModelError, first_line
from ...files import expanded
from . import prompt_input

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_QUERY = "<query>"
"""Stands for the question where a cached prompt ends; any text that no template writes."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what the answer begins with, and what precedes the prompt."""
    parser.add_argument(
        "--prefill-response", metavar="TEXT", help="have the answer go on from this text"
    )
    parser.add_argument(
        "--prompt-cache-file",
        metavar="FILE",
        help="go on from a prompt that mlx_lm.cache_prompt cached (.safetensors)",
    )


def encode(
    tokenizer: TokenizerWrapper, prompt: str, arguments: argparse.Namespace
) -> tuple[list[Any] | None, list[int]]:
    """Return what precedes a prompt in a cache, if anything, and the tokens to answer.

    Raises:
        PromptError: the prompt is empty, or the chat template refuses it.
        UnsupportedModelError: the file of a cached prompt cannot be read.
    """
    cache = None
    if arguments.prompt_cache_file:
        cache = _cache(expanded(arguments.prompt_cache_file, PromptError))
        tokens = _after_cache(tokenizer, prompt, arguments)
    else:
        tokens = prompt_input.encode_prompt(tokenizer, prompt, arguments)
    if arguments.prefill_response:
        tokens += tokenizer.encode(arguments.prefill_response, add_special_tokens=False)
    return cache, tokens


def _cache(file: Path) -> list[Any]:
    """Return the cache in a file of mlx-lm's."""
    from mlx_lm.models.cache import load_prompt_cache
    from safetensors import safe_open

    try:
        with safe_open(str(file), framework="numpy"):  # MLX trusts the header
            pass
        cache: list[Any] = load_prompt_cache(str(file))
    except Exception as error:  # whatever a file that is none makes it stumble over
        raise UnsupportedModelError(
            f"{file}: cannot be read as a prompt cache: {first_line(error)}; mlx_lm.cache_prompt"
            " writes one"
        ) from error
    return cache


def _after_cache(
    tokenizer: TokenizerWrapper, prompt: str, arguments: argparse.Namespace
) -> list[int]:
    """Return the tokens from the question on: the file holds what the template writes before it."""
    from ...api.prompts import conversation_text, text_prompt

    if arguments.ignore_chat_template or not tokenizer.has_chat_template:
        return text_prompt(tokenizer, prompt)
    text = conversation_text(tokenizer, [{"role": "user", "content": _QUERY}])
    _, found, after = text.partition(_QUERY)
    if not found:
        raise PromptError("the chat template changes the question, so no cached prompt precedes it")
    return list(tokenizer.encode(prompt + after, add_special_tokens=False))
