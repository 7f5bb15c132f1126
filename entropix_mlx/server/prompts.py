"""From a request to the tokens of its prompts and its whole constraint, on threads of their own."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..answer.reasoning import ReasoningSpan
from ..api.prompts import conversation_prompt, template_source, text_prompt
from ..api.tools import call_format, special_tokens
from ..constraints.constraint import GRAMMAR, JSON_SCHEMA, Constraint
from ..constraints.matcher import matcher_for
from ..errors import ConstraintError, ContextLengthError
from ..profiles.profile import Profile
from ..settings import SEED_BITS
from ..tools.formats import CallFormat, json_rule
from ..tools.reader import CallReader, ReasoningReader
from .model_info import ServedModel
from .openai.errors import RequestError
from .openai.message import ChatMessage
from .openai.requests import CompletionRequest, Prompt, Tools
from .openai.responses import Choice, TokenText

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

EFFORT, SWITCH = "reasoning_effort", "enable_thinking"
"""Variables of templates, under the names that most of them use."""
NO_EFFORT, USUAL_EFFORT = "none", "medium"


class PromptMaker:
    """Makes the prompts of requests to one model."""

    def __init__(self, served: ServedModel, tokenizer: TokenizerWrapper) -> None:
        self._tokenizer = tokenizer
        self._vocab = served.config.vocab_size
        self._tokens = TokenText(tokenizer, self._vocab)
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
        loop = asyncio.get_running_loop()
        constraint, effort = request.settings.constraint, request.effort
        if request.tools or constraint or effort is not None or _has_calls(request):
            request = await loop.run_in_executor(self._compiling, self._prepared, request)
        return await loop.run_in_executor(self._thread, self._choices, request)

    # ── What a request says besides its prompts ─────────────────────────────────────────────────

    def _prepared(self, request: CompletionRequest) -> CompletionRequest:
        """Return a request with all variables of its template, and its whole constraint."""
        if request.effort is not None:
            request = self._with_effort(request, request.effort)
        if request.tools is not None or _has_calls(request):
            field = "messages" if request.tools is None else "tools"
            if self._format is None:
                message = (
                    f"{field}: the chat template of this model shows it no tools: leave them out"
                )
                raise RequestError(message, field, code="unsupported")
        if request.tools is not None and self._format is not None:
            return self._with_tools(request, request.tools, self._format)
        if (stated := request.settings.constraint) is not None:
            self._check(stated, request.constrained_by)
        return request

    def _check_length(self, request: CompletionRequest) -> None:
        """Refuse what has more bytes than the context can hold, before it is tokenized."""
        listed = request.tools.listed if request.tools else ()
        stated = (*request.prompts, request.stated.prefix, listed, request.variables)
        if any(_text_bytes(part) > self._most_bytes for part in stated):
            raise ContextLengthError(
                "the prompt is longer than the model's context, which holds"
                f" {self._context} tokens: shorten the prompt"
            )

    @functools.cached_property
    def _format(self) -> CallFormat | None:
        return call_format(self._tokenizer)

    @functools.cached_property
    def _special(self) -> dict[str, int]:
        return special_tokens(self._tokenizer)

    def _with_effort(self, request: CompletionRequest, effort: str) -> CompletionRequest:
        template = template_source(self._tokenizer)
        stated = variables_for_effort(effort, template, self._tokenizer.has_thinking)
        if stated is None:
            return replace(request, settings=replace(request.settings, thinking_budget=0))
        return replace(request, variables={**stated, **request.variables})

    def _with_tools(
        self, request: CompletionRequest, tools: Tools, form: CallFormat
    ) -> CompletionRequest:
        stated, field = request.settings.constraint, request.constrained_by
        answer = None if stated is None else _answer_rule(stated, field, form)
        try:
            grammar = form.grammar(
                tools.functions,
                self._special,
                required=tools.required,
                several=tools.several,
                answer=answer,
            )
        except ConstraintError as error:
            if tools.required or stated is not None:
                field = field or "tool_choice"
                raise RequestError(f"{field}: {error}", field, code="bad_constraint") from None
            return request  # the model is asked to write what fits, and not held to it
        combined = Constraint(GRAMMAR, grammar)
        try:
            self._check(combined, "tools")
        except RequestError:
            for function in tools.functions:  # one of them, by its name
                named = f"the parameters of {function.name}"
                self._check(Constraint(JSON_SCHEMA, function.parameters), "tools", named)
            raise
        return replace(request, settings=replace(request.settings, constraint=combined))

    def _check(self, constraint: Constraint, field: str | None, named: str = "") -> None:
        try:
            matcher_for(constraint, self._tokenizer, self._vocab)
        except ConstraintError as error:
            message = f"{named or field}: {error}"
            raise RequestError(message, field, code="bad_constraint") from None

    # ── Tokens ──────────────────────────────────────────────────────────────────────────────────

    def _choices(self, request: CompletionRequest) -> list[Choice]:
        seed = request.settings.seed
        first = secrets.randbits(SEED_BITS) if seed is None else seed
        prefix = request.stated.prefix
        if isinstance(prefix, str):
            prefix = tuple(self._tokenizer.encode(prefix, add_special_tokens=False))
        rule = Profile.load(request.settings.profile).abstain
        choices: list[Choice] = []
        for prompt in request.prompts:
            tokens = (*self._prompt_tokens(prompt, request), *prefix)
            echoed = ""
            if request.stated.repeats_prompt:
                echoed = prompt if isinstance(prompt, str) else self._tokenizer.decode([*tokens])
            for sample in range(request.stated.n):
                settings = replace(request.settings, seed=first + sample)
                index = len(choices)
                choice = Choice(index, tokens, settings, request, self._tokens, rule, echoed)
                choice.message = self._message(request, tokens)
                choices.append(choice)
        return choices

    def _prompt_tokens(self, prompt: Prompt, request: CompletionRequest) -> Sequence[int]:
        if isinstance(prompt, str):
            return text_prompt(self._tokenizer, prompt)
        messages = [message for message in prompt if isinstance(message, dict)]
        if not messages:
            return [token for token in prompt if isinstance(token, int)]
        listed = request.tools.listed if request.tools else ()
        return conversation_prompt(self._tokenizer, messages, listed, request.variables)

    def _message(self, request: CompletionRequest, prompt: Sequence[int]) -> ChatMessage:
        """Return the empty message of an answer to a prompt."""
        calls = reasoning = None
        if request.tools is not None and self._format is not None:
            calls = CallReader(self._format, request.tools.listed)
        if request.chat and self._tokenizer.has_thinking:
            is_open = ReasoningSpan(self._tokenizer, prompt).open
            tags = self._tokenizer.think_start, self._tokenizer.think_end
            reasoning = ReasoningReader(*tags, is_open)
        return ChatMessage(reasoning, calls)


def _text_bytes(value: Any) -> int:
    """Return the bytes of all texts in a value; a number counts as one."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, Mapping):
        return sum(map(_text_bytes, value.values()))
    return sum(map(_text_bytes, value)) if isinstance(value, list | tuple) else 1


def _answer_rule(constraint: Constraint, field: str | None, form: CallFormat) -> str:
    if not constraint.is_json or not form.start:  # calls could not be told from other JSON
        raise RequestError(f"{field} and tools cannot be combined: leave one out", field)
    return json_rule(constraint.value)


def _has_calls(request: CompletionRequest) -> bool:
    return request.chat and any(
        isinstance(message, dict) and (message["role"] == "tool" or "tool_calls" in message)
        for prompt in request.prompts
        for message in prompt
    )


def variables_for_effort(effort: str, template: str, reasons: bool) -> dict[str, Any] | None:
    """Return the variables by which a template is told how much to reason.

    None says that the template cannot be told not to, and the model would reason.

    Raises:
        RequestError: the template knows no such effort.
    """
    if EFFORT in template:
        return {EFFORT: effort}
    if effort == NO_EFFORT and reasons:
        return {SWITCH: False} if SWITCH in template else None
    if effort not in (NO_EFFORT, USUAL_EFFORT):
        message = (
            f"{EFFORT} {effort} is not supported: the chat template of this model knows no degrees"
            " of reasoning; leave it out, or set thinking_budget"
        )
        raise RequestError(message, EFFORT, code="unsupported")
    return {}
