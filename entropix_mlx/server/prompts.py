"""From a request to the tokens of its prompts, on threads of their own."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import ContextLengthError
from ..profiles.profile import Profile
from ..settings import SEED_BITS
from ..tools.formats import CallFormat
from .compiling import Compiler
from .model_info import ServedModel
from .openai.requests import CompletionRequest, Message, Prompt
from .openai.responses import Choice, TokenText

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class PromptMaker:
    """Tokenizes the prompts of requests to one model."""

    def __init__(self, served: ServedModel, tokenizer: TokenizerWrapper) -> None:
        self._tokenizer = tokenizer
        self._tokens = TokenText(tokenizer)
        self._compiler = Compiler(
            tokenizer, served.config.vocab_size, served.limits.constraint_characters
        )
        self._context = served.config.max_position_embeddings
        self._most_bytes = self._context * max(len(t.encode()) for t in tokenizer.get_vocab())
        # One thread: tokenizers are not made to be used by several at once.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        # Another one: a constraint may take seconds, while nobody's prompts wait for it.
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="compiler")

    async def choices(self, request: CompletionRequest) -> list[Choice]:
        """Return a choice for each answer of a request.

        Raises:
            PromptError, ContextLengthError: there is no such prompt, or it is too long.
            RequestError: its constraint cannot be compiled, or the model knows no tools.
        """
        self._check_length(request)
        loop, form = asyncio.get_running_loop(), None
        if self._compiler.concerns(request):
            request, form = await loop.run_in_executor(
                self._compiling, self._compiler.prepare, request
            )
        return await loop.run_in_executor(self._thread, self._choices, request, form)

    def _check_length(self, request: CompletionRequest) -> None:
        """Refuse what has more bytes than the context can hold, before it is tokenized."""
        shown = json.dumps([request.tools.listed if request.tools else (), request.variables])
        for part in (*request.prompts, request.prefix, request.forced, shown):
            text = _text(part)
            if len(part) > self._context if text is None else len(text.encode()) > self._most_bytes:
                raise ContextLengthError(
                    "the prompt is longer than the model's context, which holds"
                    f" {self._context} tokens: shorten the prompt"
                )

    def _choices(self, request: CompletionRequest, form: CallFormat | None) -> list[Choice]:
        listed = request.tools.listed if request.tools else ()
        seed = request.settings.seed
        first = secrets.randbits(SEED_BITS) if seed is None else seed
        prefix = request.prefix
        if isinstance(prefix, str):
            prefix = tuple(self._tokenizer.encode(prefix, add_special_tokens=False))
        rule = Profile.load(request.settings.profile).abstain
        choices: list[Choice] = []
        for prompt in request.prompts:
            tokens = (*_tokens(prompt, self._tokenizer, listed, request.variables), *prefix)
            echoed = ""
            if request.echo:
                echoed = prompt if isinstance(prompt, str) else self._tokenizer.decode([*tokens])
            for sample in range(request.n):
                settings = replace(request.settings, seed=first + sample)
                index = len(choices)
                choice = Choice(index, tokens, settings, request, self._tokens, rule, echoed)
                choice.message = self._compiler.message(request, form, tokens)
                choices.append(choice)
        return choices


def _text(prompt: Prompt) -> str | None:
    """Return what there is to tokenize of a prompt; None if it comes in tokens."""
    if isinstance(prompt, str):
        return prompt
    messages = [message for message in prompt if isinstance(message, dict)]
    texts = (part for message in messages for part in _parts(message))
    return "\n".join(texts) if messages else None


def _parts(message: Message) -> Iterator[str]:
    yield message["content"]
    yield message.get("reasoning_content", "")
    yield json.dumps(message["tool_calls"]) if "tool_calls" in message else ""


def _tokens(
    prompt: Prompt,
    tokenizer: TokenizerWrapper,
    tools: Sequence[dict[str, Any]],
    variables: Mapping[str, Any],
) -> Sequence[int]:
    from ..api.prompts import conversation_prompt, text_prompt

    if isinstance(prompt, str):
        return text_prompt(tokenizer, prompt)
    messages = [message for message in prompt if isinstance(message, dict)]
    if messages:
        return conversation_prompt(tokenizer, messages, tools, variables)
    return [token for token in prompt if isinstance(token, int)]
