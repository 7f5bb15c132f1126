"""OpenAI's requests as pydantic models, and the record that they become."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, create_model

from ...constraints.constraint import ANY_OBJECT, Constraint
from ...errors import EntropixError, ProfileError, SamplerError
from ...profiles.fields import one_of, overlaid, shown
from ...profiles.profile import Profile
from ...profiles.sampler_specs import PARAMETERS
from ...profiles.sections import MOST_FORKS
from ...samplers.registry import find_sampler
from ...settings import NO_LIMIT, Settings, described
from ...tools.formats import NO_PARAMETERS, Function
from ...tools.reader import ID_LENGTH
from ..model_info import ServedModel
from .errors import RequestError, as_request_error
from .fields import (
    Fields,
    Flag,
    Json,
    Object,
    Text,
    check_flag,
    check_list,
    check_names,
    check_object,
    check_small_object,
    read_fields,
    ruled,
    schema,
    unsupported,
    whole,
)

if TYPE_CHECKING:
    from ..protocols.translator import Translator

Message = dict[str, Any]
Prompt = tuple[Message, ...] | str | tuple[int, ...]
"""Messages of a conversation, a text to continue, or token ids."""

COMPLETION_TOKENS = 16
"""The `max_tokens` of /v1/completions where a request names none, as OpenAI has it."""
MOST_ANSWERS = 128
"""Prompts times answers to each."""
MOST_PROMPTS = 128
MOST_MESSAGES = 4096
MOST_TOOLS = 128
MOST_STOPS, LONGEST_STOP = 16, 512
MOST_LISTED = 20
"""Tokens that are listed beside one."""
WIDEST_FORK, DEEPEST_FORK = 16, 256
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
WITHOUT_EFFECT = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("verbosity", "prediction"),
}
"""Fields of OpenAI's that would change nothing in an answer."""


# ── Types of fields ─────────────────────────────────────────────────────────────────────────────


def _response_format(value: Any) -> Constraint | None:
    stated = check_object(value)
    kind = stated.get("type")
    if kind == "text":
        check_names(stated, "type")
        return None
    if kind == "json_object":
        check_names(stated, "type", "schema")
        return schema(stated["schema"]) if stated.get("schema") is not None else ANY_OBJECT
    if kind == "json_schema":
        check_names(stated, "type", "json_schema")
        named = check_object(stated.get("json_schema"))
        check_names(named, "name", "description", "schema", "strict")
        check_flag(named.get("strict") or False)
        return schema(named.get("schema"))
    raise unsupported(
        f"type {shown(kind)} is not supported, only text, json_object and json_schema"
    )


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
    """Return variables of a chat template: none that another field states, or that is code."""
    from transformers import PreTrainedTokenizerBase

    taken = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    for name in check_small_object(value):
        if name in taken or name in ("messages", "xml_tools"):
            raise ValueError(f"may not replace {name}: leave it out")
    return check_object(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops: tuple[str, ...] = described()["stop"].rule(value)
    if len(stops) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stops):
        raise ValueError(f"may hold {MOST_STOPS} texts of {LONGEST_STOP} characters at most")
    return stops


def _of_object(value: Json) -> Json:
    if value.get("type", "object") != "object":
        raise ValueError("must be the JSON schema of an object")
    return value


def _short_id(stated: str) -> str:
    """Return the id of a call in nine letters or digits: Mistral's templates take no other."""
    fits = len(stated) == ID_LENGTH and stated.isalnum()
    return stated if fits else hashlib.sha256(stated.encode()).hexdigest()[:ID_LENGTH]


def _arguments(stated: Any) -> Json:
    try:
        read = json.loads(stated or "{}") if isinstance(stated, str) else stated
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise ValueError(f"must be a JSON object, not {shown(stated)}")
    return read


ListedTokens = Annotated[int, whole(0, MOST_LISTED)]
CallId = Annotated[Text, AfterValidator(_short_id)]


# ── Messages and tools ──────────────────────────────────────────────────────────────────────────


class CalledFunction(BaseModel):
    """A function with the arguments that it was called with."""

    name: Text
    arguments: Annotated[Json, BeforeValidator(_arguments)] = {}


class StatedCall(BaseModel):
    """A call in a message of the assistant."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


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
            message: Message = {"role": self.role, "content": _text_of(self.content or "")}
            if self.reasoning_content:
                message["reasoning_content"] = self.reasoning_content
            if self.tool_calls:
                message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
            return message
        role = self.role.replace("developer", "system")
        message = {"role": role, "content": _text_of(self.content)}
        if self.role == "tool":
            if self.tool_call_id is None:
                raise ValueError("must have a tool_call_id")
            message["tool_call_id"] = self.tool_call_id
        return message


ReadMessage = Annotated[StatedMessage, AfterValidator(StatedMessage.read)]


class StatedFunction(Fields):
    """A function as a request states it."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: Text = ""
    parameters: Annotated[Object, AfterValidator(_of_object)] = NO_PARAMETERS
    strict: Any = None


class Tool(Fields):
    """An element of ``tools``."""

    type: Literal["function"]
    function: StatedFunction


@dataclass(frozen=True)
class Tools:
    """The functions of a request."""

    listed: tuple[Json, ...]
    """As the chat template shows them: each with a name, a description and parameters."""
    functions: tuple[Function, ...]
    """Those that may be called."""
    required: bool
    """Whether one must be called."""
    several: bool
    """Whether there may be more than one call."""


def _offered(stated: Sequence[Tool], choice: Any, several: bool) -> Tools | None:
    """Return the tools of a request; None if the model shall not know any.

    Raises:
        RequestError: two have one name, or the choice is none of them.
    """
    functions = [
        Function(tool.function.name, {"type": "object", **tool.function.parameters})
        for tool in stated
    ]
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise RequestError("tools has two functions of one name: rename one of them", "tools")
    if choice not in ("none", "auto", "required"):
        name, several = _chosen(choice), False
        functions = [function for function in functions if function.name == name]
    if not functions and choice not in ("none", "auto"):
        known = ", ".join(names[:20]) or "none"
        raise RequestError(
            f"tool_choice asks for {shown(choice)}, and tools has {known}", "tool_choice"
        )
    if not functions or choice == "none":
        return None
    listed = tuple(
        {"type": "function", "function": tool.function.model_dump(exclude={"strict"})}
        for tool in stated
    )
    return Tools(listed, tuple(functions), choice != "auto", several)


def _chosen(choice: Any) -> Any:
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict) or choice.get("type") != "function":
        form = '{"type": "function", "function": {"name": …}}'
        message = f"tool_choice must be none, auto, required or {form}, not {shown(choice)}"
        raise RequestError(message, "tool_choice")
    return function.get("name")


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


class ThresholdFields(Fields):
    """The fields that thresholds depend on."""

    model: Text | None = None
    sampler: Text | None = None
    profile: Text | None = None
    set: Annotated[Json, ruled(check_small_object)] = Field(default_factory=dict)
    think: Flag = True
    branch: Annotated[bool | None, ruled(check_flag)] = None

    def profile_of(self, served: ServedModel) -> Profile:
        """Return the profile that a request means.

        Raises:
            RequestError: there is none of that name, or a field is wrong.
        """
        profile = served.profile if self.profile is None else served.find_profile(self.profile)
        changes: Json = {} if self.think else {"think": {"max_insertions": 0}}
        if self.branch is not None:
            changes["branch"] = {"max_branches": MOST_FORKS if self.branch else 0}
        try:
            profile = profile.replace(_nested(self.set), "set").replace(changes)
        except ProfileError as error:
            raise RequestError(str(error), "set") from None
        if profile.branch.width > WIDEST_FORK or profile.branch.depth > DEEPEST_FORK:
            most = f"{WIDEST_FORK} branches and {DEEPEST_FORK} tokens"
            raise RequestError(f"forks may have {most} at most here", "set")
        return profile


def _nested(assignments: Json) -> Json:
    """Return ``{"thresholds.low_entropy": 0.2}`` as tables within tables."""
    result: Json = {}
    for name, assigned in assignments.items():
        value = assigned
        for part in reversed(name.split(".")[:4]):
            value = {part: value}
        result = overlaid(result, value)
    return result


class ExplainedFields(ThresholdFields):
    """The body of /v1/explain."""

    step: Any = None


class StreamOptions(Fields):
    """``stream_options``."""

    include_usage: Flag = False
    include_obfuscation: Any = None


if TYPE_CHECKING:
    _Described = ThresholdFields
else:
    _Described = create_model(
        "_Described",
        __base__=ThresholdFields,
        **{
            option.name: (Annotated[Any, ruled(option.rule)], None)
            for option in described().values()
            if option.served and option.name != "sampler"
        },
    )


class CommonFields(_Described):
    """What chats and completions have in common: fields of `Settings`, and these."""

    max_completion_tokens: Annotated[int | None, whole(NO_LIMIT)] = None
    stop: Annotated[tuple[str, ...] | None, ruled(_stops)] = None
    n: Annotated[int, whole(1, MOST_ANSWERS)] = 1
    stream: Flag = False
    stream_options: StreamOptions | None = None
    prefix: Annotated[str | tuple[int, ...], ruled(_text_or_tokens)] = ()
    """The beginning of each answer; it is not sent."""
    forced: Annotated[tuple[int, ...], ruled(_tokens)] = ()
    """Tokens that come next, whatever would be drawn; they are sent like all others."""
    response_format: Annotated[Any, ruled(_response_format)] = None
    default_tokens: ClassVar[int | None] = None
    """The tokens of an answer where a request names no limit; None for the server's."""

    @property
    def repeats_prompt(self) -> bool:
        return False

    def settings_of(self, served: ServedModel) -> Settings:
        """Return the settings of a request.

        Raises:
            RequestError: a sampler does not take a parameter, a profile is wrong, or two fields do
                not go together.
        """
        names = [option.name for option in described().values() if option.served]
        given = {name: v for name in names if (v := getattr(self, name)) is not None}
        given |= {"sampler": self.sampler or served.settings.sampler}
        if given["sampler"] == "greedy" and given.get("temperature") == 0:
            del given["temperature"]  # which is what it says
        _check_parameters(given, served)
        given["max_tokens"] = self._max_tokens(served)
        given["constraint"] = self._constraint()
        return replace(served.settings, **given, profile=self.profile_of(served), changes={})

    def _max_tokens(self, served: ServedModel) -> int:
        name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        stated: int | None = getattr(self, name)
        if stated is None:
            return self.default_tokens or served.settings.max_tokens
        if not stated and not self.repeats_prompt:
            raise RequestError(f"{name} must be at least 1, not 0", name)
        return stated

    def _constraint(self) -> Constraint | None:
        stated: Constraint | None = self.constraint  # type: ignore[attr-defined]
        if stated is not None and self.response_format is not None:
            message = "constraint and response_format cannot be combined: choose one"
            raise RequestError(message, "constraint")
        return stated or self.response_format


def _check_parameters(given: Json, served: ServedModel) -> None:
    try:
        kind = find_sampler(given["sampler"])
    except SamplerError as error:
        raise RequestError(str(error), "sampler") from None
    for name in PARAMETERS:
        if name in given:
            try:
                kind.check({name: given[name]})
            except SamplerError as error:
                raise RequestError(str(error), name) from None
    _check_tokens([*given.get("logit_bias", {})], served, "logit_bias")


class ChatFields(CommonFields):
    """The body of /v1/chat/completions."""

    messages: Annotated[tuple[ReadMessage, ...], Field(min_length=1), check_list(MOST_MESSAGES)]
    logprobs: Flag = False
    top_logprobs: ListedTokens = 0
    tools: Annotated[tuple[Tool, ...], check_list(MOST_TOOLS)] = ()
    tool_choice: Any = "auto"
    parallel_tool_calls: Flag = True
    chat_template_kwargs: Annotated[Json, ruled(_variables)] = Field(default_factory=dict)
    reasoning_effort: Annotated[str | None, ruled(one_of(*EFFORTS))] = None


class TextFields(CommonFields):
    """The body of /v1/completions."""

    prompt: Annotated[Any, ruled(_prompts)]
    logprobs: ListedTokens | None = None
    echo: Flag = False
    default_tokens: ClassVar[int | None] = COMPLETION_TOKENS

    @property
    def repeats_prompt(self) -> bool:
        return self.echo


@dataclass(frozen=True)
class CompletionRequest:
    """A request for answers, as it was read from HTTP."""

    stated: CommonFields
    prompts: tuple[Prompt, ...]
    settings: Settings
    logprobs: bool
    """Whether the log probabilities of tokens are sent."""
    tools: Tools | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Of the chat template."""
    effort: str | None = None
    """How much the model shall reason."""
    translator: Translator | None = None
    """Makes the response one of another protocol."""

    @property
    def chat(self) -> bool:
        return isinstance(self.stated, ChatFields)

    @property
    def answers(self) -> int:
        return self.stated.n * len(self.prompts)

    @property
    def scored(self) -> bool:
        """Whether the log probabilities of the prompts' own tokens are sent."""
        return self.stated.repeats_prompt and self.logprobs

    def refusal(self, error: EntropixError) -> RequestError:
        """Return the response to an error, which names the field of this request's protocol."""
        found = as_request_error(error)
        if self.chat and found.param == "prompt":
            found.param = "messages"
        if self.translator is not None:
            found.param = self.translator.params.get(str(found.param), found.param)
        return found

    @property
    def include_usage(self) -> bool:
        options = self.stated.stream_options
        return options is not None and options.include_usage

    @property
    def constrained_by(self) -> str | None:
        """The field that states the constraint of the settings."""
        if self.settings.constraint is None:
            return None
        return "constraint" if self.stated.response_format is None else "response_format"


def parse_chat(body: Json, served: ServedModel) -> CompletionRequest:
    """Return the request for an answer to a conversation.

    Raises:
        RequestError: a field is unknown or wrong, or does not go with another or with the model.
    """
    stated = read_fields(ChatFields, _effective(body))
    if stated.top_logprobs and not stated.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
    request = CompletionRequest(
        stated,
        prompts=(stated.messages,),  # type: ignore[arg-type]  # which `read` made dictionaries
        settings=replace(stated.settings_of(served), top_logprobs=stated.top_logprobs),
        logprobs=stated.logprobs,
        tools=_offered(stated.tools, stated.tool_choice, stated.parallel_tool_calls),
        variables=stated.chat_template_kwargs,
        effort=stated.reasoning_effort,
    )
    return _checked(request, served)


def parse_completion(body: Json, served: ServedModel) -> CompletionRequest:
    """Return the request for continuations of texts.

    Raises:
        RequestError: as for `parse_chat`.
    """
    stated = read_fields(TextFields, _effective(body))
    for prompt in stated.prompt:
        _check_tokens(prompt, served, "prompt")
    if stated.echo and stated.prefix:
        raise RequestError("prefix and echo do not go together: put it into the prompt", "prefix")
    settings = replace(stated.settings_of(served), top_logprobs=stated.logprobs or 0)
    listed = stated.logprobs is not None
    return _checked(CompletionRequest(stated, stated.prompt, settings, listed), served)


def _effective(body: Json) -> Json:
    return {name: value for name, value in body.items() if name not in WITHOUT_EFFECT}


def _checked(request: CompletionRequest, served: ServedModel) -> CompletionRequest:
    """Return a request whose fields go together."""
    stated, several = request.stated, request.settings.answers
    for name in ("prefix", "forced"):
        _check_tokens(getattr(stated, name), served, name)
    if stated.stream_options is not None and not stated.stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    drawn = several
    if not isinstance(several, int):
        drawn = Profile.load(request.settings.profile).answers.count
    if request.answers * int(drawn) > MOST_ANSWERS:
        raise RequestError(f"a request may ask for {MOST_ANSWERS} answers at most", "n")
    if several != 1 and (stated.forced or request.scored):
        raise RequestError("with forced, or echo and logprobs, there is one answer", "answers")
    return request


def _check_tokens(tokens: str | Sequence[int], served: ServedModel, name: str) -> None:
    size = served.config.vocab_size
    beyond = () if isinstance(tokens, str) else [one for one in tokens if not 0 <= one < size]
    if beyond:
        message = f"{name} holds token {shown(beyond[0])}, and the model has {size}"
        raise RequestError(message, name)
