"""What a request's tools and constraint mean for the model that is served."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..answer.reasoning import ReasoningSpan
from ..constraints.constraint import GRAMMAR, JSON_SCHEMA, Constraint
from ..errors import ConstraintError
from ..tools.formats import CallFormat, json_rule
from ..tools.reader import CallReader, ReasoningReader
from .openai.errors import RequestError
from .openai.message import ChatMessage
from .openai.requests import CompletionRequest
from .openai.tools import Tools

EFFORT, SWITCH = "reasoning_effort", "enable_thinking"
"""Variables of templates, under the names that most of them use."""
NO_EFFORT, USUAL_EFFORT = "none", "medium"

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Compiler:
    """Compiles the constraints of requests, on a thread of their own."""

    def __init__(self, tokenizer: TokenizerWrapper, vocab: int, most_characters: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._most_characters = most_characters

    def concerns(self, request: CompletionRequest) -> bool:
        """Return whether a request has tools, calls, an effort or a constraint."""
        stated = request.tools or request.settings.constraint or request.reasoning_effort
        return stated is not None or _has_calls(request)

    def prepare(self, request: CompletionRequest) -> tuple[CompletionRequest, CallFormat | None]:
        """Return a request with its whole constraint, and the format of its calls, if it has any.

        Raises:
            RequestError: the model knows no tools, or the constraint cannot be compiled.
        """
        form = None
        if request.reasoning_effort is not None:
            request = self._with_effort(request, request.reasoning_effort)
        if request.tools is not None or _has_calls(request):
            form = self._format
            if form is None:
                field = "messages" if request.tools is None else "tools"
                message = (
                    f"{field}: the chat template of this model shows it no tools: leave them out"
                )
                raise RequestError(message, field, code="unsupported")
        if request.tools is not None and form is not None:
            request = self._with_tools(request, request.tools, form)
        elif (stated := request.settings.constraint) is not None:
            self._checked(stated.kind, stated.value, request.constrained_by)
        return request, form

    def message(
        self, request: CompletionRequest, form: CallFormat | None, prompt: Sequence[int]
    ) -> ChatMessage:
        """Return the empty message of an answer to a prompt."""
        calls = reasoning = None
        if request.tools is not None and form is not None:
            calls = CallReader(form, request.tools.listed)
        if request.chat and self._tokenizer.has_thinking:
            is_open = ReasoningSpan(self._tokenizer, prompt).open
            tags = self._tokenizer.think_start, self._tokenizer.think_end
            reasoning = ReasoningReader(*tags, is_open)
        return ChatMessage(reasoning, calls)

    @functools.cached_property
    def _format(self) -> CallFormat | None:
        from ..api.tools import call_format

        return call_format(self._tokenizer)

    @functools.cached_property
    def _special(self) -> dict[str, int]:
        from ..api.tools import special_tokens

        return special_tokens(self._tokenizer)

    def _with_effort(self, request: CompletionRequest, effort: str) -> CompletionRequest:
        from ..api.prompts import template_source

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
        try:
            combined = self._checked(GRAMMAR, grammar, "tools")
        except RequestError:
            for function in tools.functions:  # one of them, by its name
                named = f"the parameters of {function.name}"
                self._checked(JSON_SCHEMA, function.parameters, "tools", named)
            raise
        return replace(request, settings=replace(request.settings, constraint=combined))

    def _checked(self, kind: str, value: Any, field: str | None, named: str = "") -> Constraint:
        from ..constraints.matcher import matcher_for

        try:
            constraint = Constraint(kind, value)
            if len(constraint.text) > self._most_characters:
                most = f"{self._most_characters:,} characters"
                raise ConstraintError(f"it may have {most} here: make it smaller")
            matcher_for(constraint, self._tokenizer, self._vocab)
        except ConstraintError as error:
            message = f"{named or field}: {error}"
            raise RequestError(message, field, code="bad_constraint") from None
        return constraint


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
