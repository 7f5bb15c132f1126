"""From a request to the tokens of its prompts and its constraint, on threads of their own."""

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
from ..settings import SEED_BITS, Settings
from ..tools.formats import CallFormat, json_rule
from ..tools.reader import CallReader, ReasoningReader
from .completions import AssistantText, Choice, TokenText
from .errors import BAD_CONSTRAINT, UNSUPPORTED, RequestError
from .requests import AnswerRequest, ChatRequest, Json, Prompt

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from .models import ServedModel

EFFORT, SWITCH = "reasoning_effort", "enable_thinking"
"""Variables of templates, under the names that most of them use."""
NO_EFFORT, USUAL_EFFORT = "none", "medium"


class PromptMaker:
    """Makes the prompts of requests to one model."""

    def __init__(self, served: ServedModel, tokenizer: TokenizerWrapper) -> None:
        self.served = served
        self.tokenizer = tokenizer
        self._vocab = served.config.vocab_size
        self._tokens = TokenText(tokenizer, self._vocab)
        self._context = served.config.max_position_embeddings
        self._most_bytes = self._context * max(len(t.encode()) for t in tokenizer.get_vocab())
        # One thread: tokenizers are not made to be used by several at once.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        # Another one: compiling a constraint may take seconds, and no other prompt waits for it.
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="compiler")

    async def choices(self, request: AnswerRequest) -> list[Choice]:
        """Return a choice for each answer of a request.

        Raises:
            PromptError, ContextLengthError: there is no such prompt, or it is too long.
            RequestError: a field does not fit the model, or its constraint cannot be compiled.
        """
        loop = asyncio.get_running_loop()
        compiles = request.constrained_by or (isinstance(request, ChatRequest) and request.tools)
        thread = self._compiling if compiles else self._thread
        settings, variables = await loop.run_in_executor(thread, self._prepared, request)
        return await loop.run_in_executor(self._thread, self._choices, request, settings, variables)

    def _prepared(self, request: AnswerRequest) -> tuple[Settings, Json]:
        """Return the settings with the whole constraint, and the variables of the template."""
        self._check_length(request)
        settings, variables = request.settings_of(self.served), Json()
        if isinstance(request, ChatRequest):
            variables = request.chat_template_kwargs
            if request.reasoning_effort is not None:
                stated = self._variables_for(request.reasoning_effort)
                if stated is None:
                    settings = replace(settings, thinking_budget=0)
                variables = {**(stated or {}), **variables}
            if (request.shown_tools or request.has_calls) and self._format is None:
                field = "tools" if request.shown_tools else "messages"
                why = "the chat template of this model shows it no tools: leave them out"
                raise RequestError(f"{field}: {why}", field, code=UNSUPPORTED)
            if request.shown_tools and self._format is not None:
                return self._with_tools(request, settings, self._format), variables
        if settings.constraint is not None:
            self._check(settings.constraint, request.constrained_by)
        return settings, variables

    def _check_length(self, request: AnswerRequest) -> None:
        """Refuse what has more bytes than the context can hold, before it is tokenized."""
        stated: tuple[Any, ...] = (*request.prompts, request.beginning)
        if isinstance(request, ChatRequest):
            stated += (request.shown_tools, request.chat_template_kwargs)
        if any(_text_bytes(part) > self._most_bytes for part in stated):
            raise ContextLengthError(
                "the prompt is longer than the model's context, which holds"
                f" {self._context} tokens: shorten the prompt"
            )

    def _variables_for(self, effort: str) -> Json | None:
        """Return the variables by which a template is told how much to reason.

        None says that the template cannot be told not to, and the model would reason.

        Raises:
            RequestError: the template knows no such effort.
        """
        template = template_source(self.tokenizer)
        if EFFORT in template:
            return {EFFORT: effort}
        if effort == NO_EFFORT and self.tokenizer.has_thinking:
            return {SWITCH: False} if SWITCH in template else None
        if effort not in (NO_EFFORT, USUAL_EFFORT):
            message = (
                f"{EFFORT} {effort} is not supported: the chat template of this model knows no"
                " degrees of reasoning; leave it out, or set thinking_budget"
            )
            raise RequestError(message, EFFORT, code=UNSUPPORTED)
        return {}

    @functools.cached_property
    def _format(self) -> CallFormat | None:
        return call_format(self.tokenizer)

    def _with_tools(self, request: ChatRequest, settings: Settings, form: CallFormat) -> Settings:
        stated, field = settings.constraint, request.constrained_by
        answer = None if stated is None else _answer_rule(stated, field, form)
        try:
            grammar = form.grammar(
                request.functions,
                special_tokens(self.tokenizer),
                required=request.must_call,
                several=request.several_calls,
                answer=answer,
            )
        except ConstraintError as error:
            if request.must_call or stated is not None:
                field = field or "tool_choice"
                raise RequestError(f"{field}: {error}", field, code=BAD_CONSTRAINT) from None
            return settings  # the model is asked to write what fits, and not held to it
        combined = Constraint(GRAMMAR, grammar)
        try:
            self._check(combined, "tools")
        except RequestError:
            for function in request.functions:  # one of them, by its name
                named = f"the parameters of {function.name}"
                self._check(Constraint(JSON_SCHEMA, function.parameters), "tools", named)
            raise
        return replace(settings, constraint=combined)

    def _check(self, constraint: Constraint, field: str | None, named: str = "") -> None:
        try:
            matcher_for(constraint, self.tokenizer, self._vocab)
        except ConstraintError as error:
            message = f"{named or field}: {error}"
            raise RequestError(message, field, code=BAD_CONSTRAINT) from None

    def _choices(self, request: AnswerRequest, settings: Settings, variables: Json) -> list[Choice]:
        first = secrets.randbits(SEED_BITS) if settings.seed is None else settings.seed
        prefix = request.beginning
        if isinstance(prefix, str):
            prefix = self.tokenizer.encode(prefix, add_special_tokens=False)
        choices: list[Choice] = []
        for prompt in request.prompts:
            tokens = [*self._prompt_tokens(prompt, request, variables), *prefix]
            echoed = ""
            if request.echoes:
                echoed = prompt if isinstance(prompt, str) else self.tokenizer.decode(tokens)
            choices += [
                Choice(
                    prompt=tokens,
                    settings=replace(settings, seed=first + sample),
                    forced=request.forced,
                    scored=request.echoes and request.listed is not None,
                    index=len(choices) + sample,
                    request=request,
                    tokens=self._tokens,
                    rule=Profile.load(settings.profile).abstain,
                    written=self._reader(request, tokens),
                    echoed=echoed,
                )
                for sample in range(request.n)
            ]
        return choices

    def _prompt_tokens(
        self, prompt: Prompt, request: AnswerRequest, variables: Json
    ) -> Sequence[int]:
        if isinstance(request, ChatRequest):
            return conversation_prompt(self.tokenizer, prompt, request.shown_tools, variables)
        return text_prompt(self.tokenizer, prompt) if isinstance(prompt, str) else list(prompt)

    def _reader(self, request: AnswerRequest, prompt: Sequence[int]) -> AssistantText:
        """Return what reads an answer to a prompt."""
        calls = reasoning = None
        if not isinstance(request, ChatRequest):
            return AssistantText()
        if request.shown_tools and self._format is not None:
            calls = CallReader(self._format, request.shown_tools)
        if self.tokenizer.has_thinking:
            is_open = ReasoningSpan(self.tokenizer, prompt).open
            tags = self.tokenizer.think_start, self.tokenizer.think_end
            reasoning = ReasoningReader(*tags, is_open)
        return AssistantText(reasoning, calls)


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
