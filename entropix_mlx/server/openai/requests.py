"""OpenAI's requests as pydantic models, and the record that they become."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from ...constraints.constraint import ANY_OBJECT, CHOICE, GRAMMAR, JSON_SCHEMA, REGEX, Constraint
from ...profiles.fields import Rule, check_flag, one_of, shown
from ...profiles.profile import Profile
from ...settings import ANSWERS, Settings
from ..model_info import ServedModel
from .errors import RequestError
from .fields import (
    Fields,
    Flag,
    Json,
    absent,
    check_names,
    check_object,
    constraint,
    listed,
    refusal,
    ruled,
    unsupported,
    whole,
)
from .settings import SampledFields, settings_of
from .tools import MOST_TOOLS, CallId, StatedCall, Tool, Tools, offered_tools

if TYPE_CHECKING:
    from ..protocols.translator import Translator

Message = dict[str, Any]
Prompt = tuple[Message, ...] | str | tuple[int, ...]
"""Messages of a conversation, a text to continue, or token ids."""
Model = TypeVar("Model", bound=Fields)

COMPLETION_TOKENS = 16
"""The `max_tokens` of /v1/completions where a request names none, as OpenAI has it."""
MOST_ANSWERS = 128
"""Prompts times `n`."""
MOST_PROMPTS = 128
MOST_MESSAGES = 4096
MOST_LISTED = 20
"""Tokens that are listed beside one."""
LONGEST_VARIABLES = 2**16
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_OWN_VARIABLES = (
    *("messages", "conversation", "tools", "xml_tools", "documents", "add_generation_prompt"),
    *("chat_template", "tokenize", "tokenizer_kwargs", "continue_final_message", "return_dict"),
    *("return_tensors", "return_assistant_tokens_mask", "padding", "truncation", "max_length"),
)
"""What other fields of a request state, or the code of a tokenizer takes beside variables."""


# ── Types of fields ─────────────────────────────────────────────────────────────────────────────


def _schema(value: Any) -> Constraint:
    if isinstance(value, str):  # as vLLM takes it, too
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("must be a JSON schema, and is not JSON") from None
    return constraint(JSON_SCHEMA, value)


def _response_format(value: Any) -> Constraint | None:
    stated = check_object(value)
    kind = stated.get("type")
    if kind == "text":
        check_names(stated, ("type",))
        return None
    if kind == "json_object":
        check_names(stated, ("type", "schema"))
        return _schema(stated["schema"]) if stated.get("schema") is not None else ANY_OBJECT
    if kind == "json_schema":
        check_names(stated, ("type", "json_schema"))
        named = check_object(stated.get("json_schema"))
        check_names(named, ("name", "description", "schema", "strict"))
        if named.get("strict") is not None:
            check_flag(named["strict"])
        return _schema(check_object(named.get("schema")))
    raise unsupported(
        f"type {shown(kind)} is not supported, only text, json_object and json_schema"
    )


_KINDS: dict[str, Rule] = {
    "json": _schema,
    "regex": partial(constraint, REGEX),
    "choice": partial(constraint, CHOICE),
    "grammar": partial(constraint, GRAMMAR),
}
"""vLLM's names."""


def _structured_outputs(value: Any) -> Constraint:
    stated = check_object(value)
    check_names(stated, (*_KINDS, "json_object"))
    names = [name for name, item in stated.items() if item not in (None, False)]
    if len(names) != 1:
        raise ValueError(f"must have one of {', '.join(_KINDS)}, json_object")
    [name] = names
    return ANY_OBJECT if name == "json_object" else _KINDS[name](stated[name])


def _text_of(content: Any) -> str:
    """Return the text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise ValueError(f"must be a text, not {shown(content)}")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise unsupported("may hold parts of type text only: this model reads text")
        if not isinstance(part.get("text"), str):
            raise ValueError("has a part without its text")
    return "".join(part["text"] for part in content)


def _tokens(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ValueError(f"must be a text or token ids, not {shown(value)}")
    return tuple(value)


def _text_or_tokens(value: Any) -> str | tuple[int, ...]:
    return value if isinstance(value, str) else _tokens(value)


def _prompts(value: Any) -> tuple[Prompt, ...]:
    if not isinstance(value, list) or not any(isinstance(item, str | list) for item in value):
        return (_text_or_tokens(value),)
    if len(value) > MOST_PROMPTS:
        raise ValueError(f"may hold {MOST_PROMPTS} at most")
    return tuple(_text_or_tokens(item) for item in value)


def _variables(value: Any) -> Json:
    stated = check_object(value)
    if len(json.dumps(stated)) > LONGEST_VARIABLES:
        raise ValueError(f"may have {LONGEST_VARIABLES:,} bytes at most")
    for own in _OWN_VARIABLES:
        if own in stated:
            raise ValueError(f"may not replace {own}: leave it out")
    return stated


ListedTokens = Annotated[int, whole(0, MOST_LISTED)]


class StatedMessage(BaseModel):
    """A message of a chat; what else it has is left out."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Any = None
    reasoning_content: Annotated[str, BeforeValidator(lambda v: _text_of(v) if v else "")] = ""
    tool_calls: tuple[StatedCall, ...] | None = None
    tool_call_id: CallId | None = None

    def read(self) -> Message:
        """Return the message as templates take it.

        Raises:
            ValueError: its content is missing, or of another kind.
        """
        if self.role == "assistant":
            # What is null is rendered as nothing: some templates take no other content.
            message = {"role": self.role, "content": _text_of(self.content or "")}
            if self.reasoning_content:
                message["reasoning_content"] = self.reasoning_content
            if self.tool_calls:
                calls = [call.model_dump() for call in self.tool_calls]
                return {**message, "tool_calls": calls}
            return message
        message = {
            "role": self.role.replace("developer", "system"),
            "content": _text_of(self.content),
        }
        if self.role == "tool":
            if self.tool_call_id is None:
                raise ValueError("must have a tool_call_id")
            message["tool_call_id"] = self.tool_call_id
        return message


ReadMessage = Annotated[StatedMessage, AfterValidator(StatedMessage.read)]


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


class StreamOptions(Fields):
    """``stream_options``."""

    include_usage: Flag = False
    include_obfuscation: Any = None


class CommonFields(SampledFields):
    """What /v1/chat/completions and /v1/completions have in common."""

    n: Annotated[int, whole(1, MOST_ANSWERS)] = 1
    stream: Flag = False
    stream_options: StreamOptions | None = None
    prompt_logprobs: ListedTokens | None = None
    prefix: Annotated[Any, ruled(_text_or_tokens)] = ()
    forced: Annotated[Any, ruled(_tokens)] = ()
    response_format: Annotated[Any, BeforeValidator(_response_format)] = None
    structured_outputs: Annotated[Any, BeforeValidator(_structured_outputs)] = None
    guided_json: Annotated[Any, BeforeValidator(_schema)] = None
    guided_regex: Annotated[Any, BeforeValidator(_KINDS["regex"])] = None
    guided_choice: Annotated[Any, BeforeValidator(_KINDS["choice"])] = None
    guided_grammar: Annotated[Any, BeforeValidator(_KINDS["grammar"])] = None
    # Fields of OpenAI's that would change nothing in an answer:
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    verbosity: Any = None
    prediction: Any = None
    # Fields of OpenAI's, and the values by which nothing is asked for:
    functions: Annotated[Any, absent([])] = None
    function_call: Annotated[Any, absent("none", "auto")] = None
    modalities: Annotated[Any, absent(["text"])] = None
    audio: Annotated[Any, absent()] = None
    web_search_options: Annotated[Any, absent()] = None


class ChatFields(CommonFields):
    """The body of /v1/chat/completions."""

    messages: Annotated[tuple[ReadMessage, ...], Field(min_length=1), listed(MOST_MESSAGES)]
    logprobs: Flag = False
    top_logprobs: ListedTokens = 0
    tools: Annotated[tuple[Tool, ...], listed(MOST_TOOLS)] = ()
    tool_choice: Any = "auto"
    parallel_tool_calls: Flag = True
    chat_template_kwargs: Annotated[Json, ruled(_variables)] = Field(default_factory=dict)
    reasoning_effort: Annotated[str | None, ruled(one_of(*EFFORTS))] = None


class TextFields(CommonFields):
    """The body of /v1/completions."""

    prompt: Annotated[Any, ruled(_prompts)]
    logprobs: ListedTokens | None = None
    echo: Flag = False
    best_of: Annotated[int | str | None, ruled(ANSWERS)] = None
    suffix: Annotated[Any, absent("")] = None


@dataclass(frozen=True)
class CompletionRequest:
    """A request for answers, as it was read from HTTP."""

    chat: bool
    prompts: tuple[Prompt, ...]
    settings: Settings
    n: int = 1
    """Answers to each prompt; each has the seed that follows the one before."""
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    """The most probable tokens that are listed beside each of an answer."""
    prompt_logprobs: int | None = None
    """Those that are listed beside each of the prompt; None where nothing is."""
    echo: bool = False
    prefix: str | tuple[int, ...] = ()
    """The beginning of each answer; it is not sent."""
    forced: tuple[int, ...] = ()
    """Tokens that come next, whatever would be drawn; they are sent like all others."""
    tools: Tools | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Of the chat template."""
    reasoning_effort: str | None = None
    constrained_by: str | None = None
    """The field that states the constraint of the settings."""
    translator: Translator | None = None
    """Makes the response one of another protocol."""

    @property
    def answers(self) -> int:
        return self.n * len(self.prompts)

    @property
    def scored(self) -> bool:
        """Whether the log probabilities of the prompts' own tokens are sent."""
        return (self.echo and self.logprobs) or self.prompt_logprobs is not None


def read_fields(kind: type[Model], body: Json) -> Model:
    """Return a body as the fields of a kind of request.

    Raises:
        RequestError: one is unknown or wrong, and which.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise refusal(error, kind.model_fields) from None


def parse_chat(body: Json, served: ServedModel) -> CompletionRequest:
    """Return the request for an answer to a conversation.

    Raises:
        RequestError: a field is unknown or wrong, or does not go with another or with the model.
    """
    stated = read_fields(ChatFields, body)
    if stated.top_logprobs and not stated.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
    request = CompletionRequest(
        chat=True,
        prompts=(stated.messages,),  # type: ignore[arg-type]  # which `read` made dictionaries
        settings=settings_of(stated, served, served.settings.max_tokens),
        logprobs=stated.logprobs,
        top_logprobs=stated.top_logprobs,
        tools=offered_tools(stated.tools, stated.tool_choice, stated.parallel_tool_calls),
        variables=stated.chat_template_kwargs,
        reasoning_effort=stated.reasoning_effort,
    )
    return _with_common(request, stated, served)


def parse_completion(body: Json, served: ServedModel) -> CompletionRequest:
    """Return the request for continuations of texts.

    Raises:
        RequestError: as for `parse_chat`.
    """
    stated = read_fields(TextFields, body)
    least = 0 if stated.echo or stated.prompt_logprobs is not None else 1
    settings = settings_of(stated, served, COMPLETION_TOKENS, least)
    if stated.best_of not in (None, stated.n):
        if "n" in body or "answers" in body:
            raise RequestError("best_of gives one answer: leave n and answers out", "best_of")
        settings = replace(settings, answers=stated.best_of)
    for prompt in stated.prompt:
        if not isinstance(prompt, str):
            _check_tokens(prompt, served, "prompt")
    request = CompletionRequest(
        chat=False,
        prompts=stated.prompt,
        settings=settings,
        logprobs=stated.logprobs is not None,
        top_logprobs=stated.logprobs or 0,
        echo=stated.echo,
    )
    if stated.echo and stated.prefix:
        raise RequestError("prefix and echo do not go together: put it into the prompt", "prefix")
    return _with_common(request, stated, served)


def _with_common(
    request: CompletionRequest, stated: CommonFields, served: ServedModel
) -> CompletionRequest:
    _check_together(request, stated)
    for name in ("prefix", "forced"):
        value = getattr(stated, name)
        if not isinstance(value, str):
            _check_tokens(value, served, name)
    kind, named = _constraint(stated)
    most = max(request.top_logprobs, stated.prompt_logprobs or 0)
    return replace(
        request,
        settings=replace(request.settings, constraint=kind, top_logprobs=most),
        constrained_by=named,
        n=stated.n,
        stream=stated.stream,
        include_usage=stated.stream_options is not None and stated.stream_options.include_usage,
        prompt_logprobs=stated.prompt_logprobs,
        prefix=stated.prefix,
        forced=stated.forced,
    )


def _check_together(request: CompletionRequest, stated: CommonFields) -> None:
    """Refuse fields that do not go together."""
    if stated.prompt_logprobs is not None and stated.stream:
        raise RequestError("prompt_logprobs come with a whole answer: leave stream out", "stream")
    if stated.stream_options is not None and not stated.stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    several = request.settings.answers
    drawn = several
    if not isinstance(several, int):
        drawn = Profile.load(request.settings.profile).answers.count
    if stated.n * int(drawn) * len(request.prompts) > MOST_ANSWERS:
        raise RequestError(f"a request may ask for {MOST_ANSWERS} answers at most", "n")
    scored = (request.echo and request.logprobs) or stated.prompt_logprobs is not None
    if several != 1 and (stated.forced or scored):
        raise RequestError(
            "with forced, prompt_logprobs, or echo and logprobs, there is one answer", "answers"
        )


def _constraint(stated: CommonFields) -> tuple[Constraint | None, str | None]:
    """Return the constraint of a request, and the field that states it."""
    guided = (f"guided_{name}" for name in _KINDS)
    names = ("response_format", "structured_outputs", *guided)
    given = [name for name in names if getattr(stated, name) is not None]
    if len(given) > 1:
        raise RequestError(f"{given[1]} and {given[0]} cannot be combined: choose one", given[1])
    return (getattr(stated, given[0]), given[0]) if given else (None, None)


def _check_tokens(tokens: Sequence[int], served: ServedModel, name: str) -> None:
    size = served.config.vocab_size
    if beyond := [token for token in tokens if not 0 <= token < size]:
        message = f"{name} holds token {shown(beyond[0])}, and the model has {size}"
        raise RequestError(message, name)
