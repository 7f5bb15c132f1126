"""The prompt of a command: where it comes from, and the tokens that are answered."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import limits
from ...chat.conversation import Conversation, Turn
from ...errors import PromptError, UnsupportedModelError, first_line
from ...profiles.profile import Profile
from ...traces.trace import Header
from . import options

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...models.base import LanguageModel
    from ...settings import Settings

_QUERY = "<query>"
"""Stands for the question where a cached prompt ends; any text that no template writes."""


@dataclass(frozen=True)
class PromptOptions:
    """One prompt, or a file of them."""

    text: str | None = None
    """``"-"`` reads it from stdin."""
    file: Path | None = None
    system_prompt: str | None = None
    bare: bool = False
    """Whether the text is continued without the chat template."""
    prefill_response: str | None = None
    """Text that the answer begins with."""
    cache_file: Path | None = None
    """A file of mlx-lm's that holds the KV cache of what precedes the prompt."""

    def read(self) -> str:
        if self.text != "-":
            # Bytes that are not UTF-8 arrive as lone surrogates, which no tokenizer can encode.
            text = (self.text or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        else:
            text = limits.read_stdin(PromptError).decode("utf-8", "replace")
        if not text:
            raise PromptError("the prompt is empty: write a question")
        return text

    def encode(self, tokenizer: TokenizerWrapper, prompt: str) -> list[int]:
        """Return the tokens to answer: those behind the cached ones, if there is a cache."""
        from ...api.prompts import chat_prompt, text_prompt

        if self.bare and self.system_prompt is not None:
            raise PromptError(
                "--system-prompt needs the chat template that --ignore-chat-template skips"
            )
        if self.bare or (self.cache_file and not tokenizer.has_chat_template):
            tokens = text_prompt(tokenizer, prompt)
        elif self.cache_file:
            tokens = _behind_cache(tokenizer, prompt)
        else:
            tokens = chat_prompt(tokenizer, prompt, self.system_prompt)
        if self.prefill_response:
            tokens += tokenizer.encode(self.prefill_response, add_special_tokens=False)
        return tokens

    def load_cache(self) -> list[Any] | None:
        if self.cache_file is None:
            return None
        from mlx_lm.models.cache import load_prompt_cache
        from safetensors import safe_open

        try:
            with safe_open(str(self.cache_file), framework="numpy"):  # MLX trusts the header
                pass
            cache: list[Any] = load_prompt_cache(str(self.cache_file))
        except Exception as error:  # whatever a file that is none makes it stumble over
            raise UnsupportedModelError(
                f"{self.cache_file}: cannot be read as a prompt cache: {first_line(error)};"
                " mlx_lm.cache_prompt writes one"
            ) from error
        return cache


def _behind_cache(tokenizer: TokenizerWrapper, prompt: str) -> list[int]:
    from ...api.prompts import conversation_text

    text = conversation_text(tokenizer, [{"role": "user", "content": _QUERY}])
    _, found, after = text.partition(_QUERY)
    if not found:
        raise PromptError(
            "the chat template changes the prompt, so it cannot continue a cached one"
        )
    return list(tokenizer.encode(prompt + after, add_special_tokens=False))


def add_prompt(parser: argparse.ArgumentParser, *, many: bool = False) -> None:
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", "-p", help="the prompt; - reads it from stdin")
    if many:
        what.add_argument(
            "--prompts",
            type=options.file,
            metavar="FILE",
            help="answer every line of a file; those of a .jsonl file hold a prompt or messages and"
            " options of their own, the header of a .csv file names them",
        )
    add("--system-prompt", help="instructions that precede the prompt")
    add("--ignore-chat-template", action="store_true", help="continue the prompt as plain text")
    if many:
        add("--prefill-response", metavar="TEXT", help="begin the answer with this text")
        add(
            "--prompt-cache-file",
            type=options.file,
            metavar="FILE",
            help="continue a prompt cached by mlx_lm.cache_prompt (.safetensors)",
        )


def prompt_options(arguments: argparse.Namespace) -> PromptOptions:
    given = vars(arguments)
    return PromptOptions(
        text=arguments.prompt,
        file=given.get("prompts"),
        system_prompt=arguments.system_prompt,
        bare=arguments.ignore_chat_template,
        prefill_response=given.get("prefill_response"),
        cache_file=given.get("prompt_cache_file"),
    )


def trace_header(
    model: LanguageModel,
    name: str,
    settings: Settings,
    tokens: list[int],
    question: str | None,
    system_prompt: str | None = None,
    notes: Path | None = None,
) -> Header:
    """Return the header for the trace of an answer, or of a text that answers nothing."""
    turns = [] if question is None else [Turn(question)]
    return Header(
        model=name,
        sampler=settings.sampler,
        profile=Profile.load(settings.profile),
        seed=settings.seed or 0,
        messages=Conversation(system_prompt, turns).messages,
        context_length=model.config.max_position_embeddings,
        prompt_tokens=len(tokens),
        options=settings.options,
        notes=str(notes.absolute()) if notes else "",
    )
