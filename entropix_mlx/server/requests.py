"""The bodies of requests as pydantic models.

A field of `Settings` keeps the rule by which `Settings` describes it. Pydantic says where a mistake
is, and `refusal` makes that OpenAI's ``param``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError, from_json

from ..constraints.constraint import JSON_SCHEMA, Constraint
from ..errors import ConstraintError, ProfileError, SamplerError, first_line
from ..profiles.fields import LARGEST_WHOLE, Rule, nearest, overlaid, shown
from ..profiles.profile import Profile
from ..profiles.sampler_specs import PARAMETERS
from ..profiles.sections import MOST_FORKS
from ..samplers.registry import find_sampler
from ..settings import Settings, described
from ..tools.formats import NO_PARAMETERS, Function
from ..tools.reader import ID_LENGTH
from .errors import BAD_CONSTRAINT, UNKNOWN_FIELD, UNSUPPORTED, RequestError

if TYPE_CHECKING:
    from .models import ServedModel

Json = dict[str, Any]
Prompt = Any
"""Messages of a conversation, a text to continue, or token ids."""

COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` in /v1/completions."""
MOST_ANSWERS = 128
"""Prompts times answers to each."""
MOST_PROMPTS, MOST_MESSAGES, MOST_TOOLS = 128, 4096, 128
MOST_STOPS, LONGEST_STOP = 16, 512
MOST_LISTED = 20
"""Alternatives that are listed beside a token."""
WIDEST_FORK, DEEPEST_FORK = 16, 256
MOST_FIELDS, LONGEST_OBJECT = 512, 2**16
"""Fields of an object that may have any, and its bytes as JSON."""
LONGEST_NAME = 100
TEXT_PARTS = ("text", "input_text", "output_text")


class Fields(BaseModel):
    """The fields of an object. One that is null counts as absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    without_effect: ClassVar[frozenset[str]] = frozenset()
    """Fields that are accepted and would change nothing."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, stated: Any) -> Any:
        if not isinstance(stated, dict):
            raise ValueError(f"must be an object, not {shown(stated)}")
        left_out = {name for name in stated if stated[name] is None} | cls.without_effect
        return {name: value for name, value in stated.items() if name not in left_out}


def _whole(value: Any) -> Any:
    """Return 3.0 as 3."""
    is_whole = type(value) is float and value.is_integer() and abs(value) <= LARGEST_WHOLE
    return int(value) if is_whole else value


def ruled(rule: Rule) -> BeforeValidator:
    """Return what checks a field by a rule of `Settings`."""
    return BeforeValidator(lambda value: rule(_whole(value)))


def member(name: str) -> BeforeValidator:
    """Return what takes a field from an object."""
    return BeforeValidator(lambda value: value.get(name) if isinstance(value, dict) else value)


def nested(value: Any) -> Any:
    """Return an object as chats have it: what it says is below the name of its type."""
    if not isinstance(value, dict) or value.get("type") not in ("function", "json_schema"):
        return value
    fields = {name: item for name, item in value.items() if name != "type"}
    return {"type": value["type"], value["type"]: fields}


def _small(value: Json) -> Json:
    if len(value) > MOST_FIELDS or len(json.dumps(value)) > LONGEST_OBJECT:
        raise ValueError(f"may have {MOST_FIELDS} fields and {LONGEST_OBJECT:,} bytes at most")
    return value


def _text_of(content: Any) -> str:
    """Return the text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise ValueError(f"must be a text, not {shown(content)}")
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
            why = "may hold parts of type text only: this model reads text"
            raise PydanticCustomError(UNSUPPORTED, why)
        if not isinstance(part.get("text"), str):
            raise ValueError("has a part without its text")
    return "".join(part["text"] for part in content)


def _variables(value: Json) -> Json:
    """Refuse a variable of the chat template that another field states, or that is code."""
    from transformers import PreTrainedTokenizerBase

    taken = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    for name in value:
        if name in taken or name in ("messages", "xml_tools"):
            raise ValueError(f"may not replace {name}: leave it out")
    return value


def _of_object(schema: Json) -> Json:
    if schema.get("type", "object") != "object":
        raise ValueError("must be the JSON schema of an object")
    return {"type": "object", **schema}


def _short_id(stated: str) -> str:
    """Return the id of a call in nine letters or digits: Mistral's templates take no other."""
    fits = len(stated) == ID_LENGTH and stated.isalnum()
    return stated if fits else hashlib.sha256(stated.encode()).hexdigest()[:ID_LENGTH]


def _arguments(stated: Any) -> Any:
    return from_json(stated or "{}") if isinstance(stated, str) else stated


Content = Annotated[str, BeforeValidator(_text_of)]
Whole = Annotated[StrictInt, BeforeValidator(_whole)]
TokenIds = Annotated[list[StrictInt], Field(fail_fast=True)]
StopText = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
StopTexts = Annotated[list[StopText], Field(max_length=MOST_STOPS)]
ListedTokens = Annotated[StrictInt, Field(ge=0, le=MOST_LISTED)]
SmallObject = Annotated[Json, AfterValidator(_small)]
CallId = Annotated[str, AfterValidator(_short_id)]


class _CalledFunction(Fields, extra="ignore"):
    name: str
    arguments: Annotated[Json, BeforeValidator(_arguments)] = Field({})


class _StatedCall(Fields, extra="ignore"):
    id: CallId
    type: Literal["function"] = "function"
    function: _CalledFunction


class _StatedMessage(Fields, extra="ignore"):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    reasoning_content: Content = ""
    tool_calls: list[_StatedCall] = Field([])
    tool_call_id: CallId | None = None

    @model_validator(mode="after")
    def _check(self) -> _StatedMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError("must have a content")
        if self.tool_call_id is None and self.role == "tool":
            raise ValueError("must have a tool_call_id")
        return self

    def shown(self) -> Json:
        """Return the message as chat templates take it, some of which take no null."""
        role = "system" if self.role == "developer" else self.role
        names = _SHOWN_FIELDS.get(role, set())
        more = {name: value for name, value in self.model_dump(include=names).items() if value}
        return {"role": role, "content": self.content or "", **more}


_SHOWN_FIELDS = {"assistant": {"reasoning_content", "tool_calls"}, "tool": {"tool_call_id"}}


class _StatedFunction(Fields):
    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: str = ""
    parameters: Annotated[Json, AfterValidator(_of_object)] = Field(NO_PARAMETERS)
    strict: Any = None


class Tool(Fields):
    """A function that is offered, or named as the one to call."""

    type: Literal["function"]
    function: _StatedFunction


class _NamedSchema(Fields):
    name: Any = None
    description: Any = None
    schema_: Json = Field(alias="schema")
    strict: StrictBool = False


class _ResponseFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    schema_: Json | None = Field(None, alias="schema")
    json_schema: _NamedSchema | None = None

    def constraint(self) -> Constraint | None:
        """Return what an answer in this format must match."""
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("must have a json_schema if that is its type, and only then")
        if self.schema_ is not None and self.type != "json_object":
            raise ValueError("may have a schema only if its type is json_object")
        if self.type == "text":
            return None
        schema = self.schema_ if self.json_schema is None else self.json_schema.schema_
        try:
            return Constraint(JSON_SCHEMA, schema or {"type": "object"})
        except ConstraintError as error:
            raise PydanticCustomError(BAD_CONSTRAINT, str(error)) from None


Messages = Annotated[list[_StatedMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
Tools = Annotated[list[Tool], Field(max_length=MOST_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | Tool
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None
Format = Annotated[_ResponseFormat, AfterValidator(_ResponseFormat.constraint)] | None
MaxTokens = Annotated[Any, ruled(described()["max_tokens"].rule)]


class _StreamOptions(Fields):
    include_usage: StrictBool = False
    include_obfuscation: Any = None


class ThresholdRequest(Fields):
    """The fields that thresholds depend on."""

    model: str | None = None
    sampler: str | None = None
    profile: str | None = None
    set: SmallObject = Field({})
    think: StrictBool = True
    branch: StrictBool | None = None

    def profile_of(self, served: ServedModel) -> Profile:
        """Return the profile that a request means.

        Raises:
            RequestError: there is none of that name, or a field is wrong.
        """
        profile = served.profile if self.profile is None else served.find_profile(self.profile)
        assigned = dict(self.set)
        if not self.think:
            assigned["think.max_insertions"] = 0
        if self.branch is not None:
            assigned["branch.max_branches"] = MOST_FORKS if self.branch else 0
        changes: Json = {}
        for name, value in assigned.items():
            change = value
            for part in reversed(name.split(".")[:4]):
                change = {part: change}
            changes = overlaid(changes, change)
        try:
            profile = profile.replace(changes, "set")
        except ProfileError as error:
            raise RequestError(str(error), "set") from None
        if profile.branch.width > WIDEST_FORK or profile.branch.depth > DEEPEST_FORK:
            most = f"{WIDEST_FORK} branches and {DEEPEST_FORK} tokens"
            raise RequestError(f"forks may have {most} at most here", "set")
        return profile


class ExplainRequest(ThresholdRequest):
    """The body of /v1/explain."""

    step: Any = None


_OPTIONS = [option for option in described().values() if option.served]
if TYPE_CHECKING:
    _Described = ThresholdRequest
else:
    _Described = create_model(
        "_Described",
        __base__=ThresholdRequest,
        **{
            option.name: (Annotated[Any, ruled(option.rule)], None)
            for option in _OPTIONS
            if option.name != "sampler"
        },
    )


class AnswerRequest(_Described):
    """What chats and completions have in common: fields of `Settings`, and these."""

    max_completion_tokens: MaxTokens = None
    stop: StopText | StopTexts | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MOST_ANSWERS)] = 1
    stream: StrictBool = False
    stream_options: _StreamOptions | None = None
    prefix: str | TokenIds = ""
    """The beginning of each answer; it is not sent."""
    forced: TokenIds = Field([])
    """Tokens that come next, whatever would be drawn; they are sent like all others."""
    response_format: Format = None
    without_effect = frozenset(
        {
            *("user", "metadata", "store", "service_tier", "safety_identifier"),
            *("prompt_cache_key", "verbosity", "prediction"),
        }
    )
    is_chat: ClassVar[bool] = True
    default_tokens: ClassVar[int | None] = None
    """Tokens of an answer where a request states no limit; None for the server's setting."""

    @property
    def echoes(self) -> bool:
        """Whether the answer repeats its prompt."""
        return False

    @property
    def prompts(self) -> Sequence[Prompt]:
        raise NotImplementedError

    @property
    def listed(self) -> int | None:
        """How many alternatives are listed beside each log probability; None for no list."""
        raise NotImplementedError

    @property
    def beginning(self) -> str | list[int]:
        """The beginning of each answer, which is part of the prompt."""
        return self.prefix

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def constrained_by(self) -> str | None:
        """The field that states a constraint."""
        names = ("constraint", "response_format")
        return next((name for name in names if getattr(self, name, None) is not None), None)

    def settings_of(self, served: ServedModel) -> Settings:
        """Return the settings of a request to a model.

        Raises:
            RequestError: a sampler does not take a parameter, a profile is wrong, the model lacks
                a token, or two fields do not go together.
        """
        stated = {option.name: getattr(self, option.name) for option in _OPTIONS}
        stated = {name: value for name, value in stated.items() if value is not None}
        stated.setdefault("sampler", served.settings.sampler)
        if stated["sampler"] == "greedy" and stated.get("temperature") == 0:
            del stated["temperature"]  # which is what it says
        _check_parameters(stated)
        for prompt in () if self.is_chat else self.prompts:
            check_tokens(prompt, served, "prompt")
        check_tokens([*stated.get("logit_bias", {})], served, "logit_bias")
        check_tokens(self.prefix, served, "prefix")
        check_tokens(self.forced, served, "forced")
        stated["max_tokens"] = self._max_tokens(served)
        if self.response_format is not None:
            stated["constraint"] = self.response_format
        stated |= {"top_logprobs": self.listed or 0, "profile": self.profile_of(served)}
        settings = replace(served.settings, **stated, changes={})
        self._check_combined(settings)
        return settings

    def _max_tokens(self, served: ServedModel) -> int:
        name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        stated: int | None = getattr(self, name)
        if stated is None:
            return self.default_tokens or served.settings.max_tokens
        if not stated and not self.echoes:
            raise RequestError(f"{name} must be at least 1, not 0", name)
        return stated

    def _check_combined(self, settings: Settings) -> None:
        """Check fields that depend on one another."""
        drawn = settings.answers
        if not isinstance(drawn, int):
            drawn = Profile.load(settings.profile).answers.count
        if self.n * len(self.prompts) * drawn > MOST_ANSWERS:
            raise RequestError(f"a request may ask for {MOST_ANSWERS} answers at most", "n")
        if settings.answers != 1 and (self.forced or (self.echoes and self.listed is not None)):
            raise RequestError("with forced, or echo and logprobs, there is one answer", "answers")
        if self.echoes and self.prefix:
            message = "prefix and echo do not go together: put it into the prompt"
            raise RequestError(message, "prefix")
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", "stream_options")
        if self.response_format is not None and self.constrained_by == "constraint":
            message = "constraint and response_format cannot be combined: choose one"
            raise RequestError(message, "constraint")


def _check_parameters(stated: Json) -> None:
    try:
        sampler = find_sampler(stated["sampler"])
    except SamplerError as error:
        raise RequestError(str(error), "sampler") from None
    for name in PARAMETERS.keys() & stated.keys():
        try:
            sampler.check({name: stated[name]})
        except SamplerError as error:
            raise RequestError(str(error), name) from None


def check_tokens(tokens: str | Sequence[int], served: ServedModel, param: str) -> None:
    """Check that a model has tokens; a text is fine."""
    size = served.config.vocab_size
    beyond = () if isinstance(tokens, str) else [one for one in tokens if not 0 <= one < size]
    if beyond:
        message = f"{param} holds token {shown(beyond[0])}, and the model has {size}"
        raise RequestError(message, param)


class ChatRequest(AnswerRequest):
    """The body of /v1/chat/completions."""

    messages: Messages
    logprobs: StrictBool = False
    top_logprobs: ListedTokens = 0
    tools: Tools = Field([])
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: StrictBool = True
    chat_template_kwargs: Annotated[SmallObject, AfterValidator(_variables)] = Field({})
    reasoning_effort: Effort = None

    @model_validator(mode="after")
    def _check_tools(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise RequestError("tools has two functions of one name: rename one of them", "tools")
        if self.must_call and not self.functions:
            known = ", ".join(names[:20]) or "none"
            message = f"tool_choice asks for a function, and tools has {known}"
            raise RequestError(message, "tool_choice")
        if self.top_logprobs and self.listed is None:
            raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
        return self

    @property
    def prompts(self) -> Sequence[Prompt]:
        return [[message.shown() for message in self.messages]]

    @property
    def listed(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def must_call(self) -> bool:
        return self.tool_choice not in ("none", "auto")

    @property
    def functions(self) -> list[Function]:
        """The functions that may be called."""
        choice = self.tool_choice
        named = choice.function.name if isinstance(choice, Tool) else None
        return [
            Function(tool.function.name, tool.function.parameters)
            for tool in self.tools
            if choice != "none" and named in (None, tool.function.name)
        ]

    @property
    def several_calls(self) -> bool:
        return self.parallel_tool_calls and not isinstance(self.tool_choice, Tool)

    @property
    def shown_tools(self) -> list[Json]:
        """The tools as chat templates take them."""
        tools = [] if self.tool_choice == "none" else self.tools
        return [tool.model_dump(exclude={"function": {"strict"}}) for tool in tools]

    @property
    def has_calls(self) -> bool:
        """Whether the messages hold calls or their results."""
        return any(message.tool_calls or message.role == "tool" for message in self.messages)


def system_message(text: str | None) -> list[Json]:
    return [] if text is None else [{"role": "system", "content": text}]


class TextRequest(AnswerRequest):
    """The body of /v1/completions."""

    prompt: str | TokenIds | Annotated[list[str | TokenIds], Field(max_length=MOST_PROMPTS)]
    logprobs: ListedTokens | None = None
    echo: StrictBool = False
    is_chat: ClassVar[bool] = False
    default_tokens: ClassVar[int | None] = COMPLETION_TOKENS

    @property
    def prompts(self) -> Sequence[Prompt]:
        stated = self.prompt
        is_single = isinstance(stated, str) or all(isinstance(item, int) for item in stated)
        return [stated] if is_single else stated

    @property
    def listed(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return self.echo


def parse_body(content: bytes | bytearray) -> Json:
    """Return the fields of a body.

    Raises:
        RequestError: it is no JSON object.
    """
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:  # not UTF-8, not JSON, or nested too deeply
        raise RequestError(f"the body is not JSON: {first_line(error)}") from None
    if not isinstance(value, dict):
        raise RequestError('the body must be a JSON object, such as {"messages": […]}')
    return value


def refusal(error: ValidationError) -> RequestError:
    """Return the response to what a model of requests refuses."""
    faults = error.errors(include_url=False, include_input=False)
    place = faults[0]["loc"]
    # One of several types has a fault for each: that of the type which fits best is told.
    alike = (fault for fault in faults if fault["loc"][:1] == place[:1])
    fault = max(alike, key=lambda each: (len(each["loc"]), each["type"] == "too_long"))
    kind = fault["type"]
    steps = (step for step in fault["loc"] if str(step).isalnum() or "_" in str(step))
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)[1:]
    where = where.removesuffix(".str")[:LONGEST_NAME] or "the body"
    if kind == "extra_forbidden":
        return _unknown_field([str(step) for step in place])
    reason = fault.get("ctx", {}).get("error")
    message = f"{where} {reason}" if reason else f"{where}: {fault['msg']}"
    code = kind if kind in (UNSUPPORTED, BAD_CONSTRAINT) else None
    return RequestError(message, str(place[0])[:LONGEST_NAME] if place else None, code=code)


def _unknown_field(place: Sequence[str]) -> RequestError:
    near = nearest(place[-1], {*ChatRequest.model_fields, *TextRequest.model_fields})
    advice = f"did you mean {near}?" if near else "leave it out"
    message = f"unknown field {'.'.join(place)[:LONGEST_NAME]!r}; {advice}"
    return RequestError(message, place[0][:LONGEST_NAME], code=UNKNOWN_FIELD)
