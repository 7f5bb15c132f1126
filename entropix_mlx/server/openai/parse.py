"""OpenAI's requests: bodies are checked and read into one record.

A field that is wrong, unknown or not supported raises a `RequestError` with its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...profiles.fields import Number, Rule, check_flag, shown
from ...profiles.profile import Profile
from ...settings import ANSWERS, Settings
from ..model_info import Limits, ServedModel
from . import constraints, sampling, template, tools
from .body import Body, check_object
from .errors import RequestError

if TYPE_CHECKING:
    from ..protocols.translator import Translator

Message = dict[str, Any]
Prompt = tuple[Message, ...] | str | tuple[int, ...]
"""Messages of a conversation, a text to continue, or token ids."""

COMPLETION_TOKENS = 16
"""The `max_tokens` of /v1/completions where a request names none, as OpenAI has it."""

ROLES = {
    **{"system": "system", "developer": "system", "user": "user", "assistant": "assistant"},
    "tool": "tool",
}

_BOTH = (
    *sampling.FIELDS,
    *constraints.FIELDS,
    *("model", "n", "stream", "stream_options", "logprobs", "prefix", "forced", "user"),
    "prompt_logprobs",
)
_CHAT = (*_BOTH, "messages", "top_logprobs", *tools.FIELDS, *template.FIELDS)
_COMPLETION = (*_BOTH, "prompt", "echo", "best_of", "suffix")
_WITHOUT_EFFECT = (
    *("metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "verbosity", "prediction"),
)
"""Fields of OpenAI's that would change nothing in an answer."""
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}
"""Fields of OpenAI's, and the values by which nothing is asked for."""


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
    tools: tools.Tools | None = None
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


def parse_chat(body: Body, served: ServedModel) -> CompletionRequest:
    body.check_names((*_CHAT, *_WITHOUT_EFFECT, *_UNSUPPORTED))
    _refuse_unsupported(body)
    messages = body.require("messages", _messages(served.limits))
    logprobs = body.read("logprobs", check_flag, False)
    best = body.read("top_logprobs", Number(0, served.limits.top_logprobs, whole=True), 0)
    if best and not logprobs:
        raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
    request = CompletionRequest(
        chat=True,
        prompts=(messages,),
        settings=sampling.read_settings(body, served, served.settings.max_tokens),
        logprobs=logprobs,
        top_logprobs=best,
        tools=tools.read_tools(body, served.limits),
        variables=template.read_variables(body, served.limits),
        reasoning_effort=template.read_effort(body),
    )
    return _with_common(request, body, served)


def parse_completion(body: Body, served: ServedModel) -> CompletionRequest:
    body.check_names((*_COMPLETION, *_WITHOUT_EFFECT, *_UNSUPPORTED))
    _refuse_unsupported(body)
    echo = body.read("echo", check_flag, False)
    best = body.read("logprobs", Number(0, served.limits.top_logprobs, whole=True))
    least = 0 if echo or "prompt_logprobs" in body else 1
    settings = sampling.read_settings(body, served, COMPLETION_TOKENS, least)
    prompts = body.require("prompt", _prompts(served))
    request = CompletionRequest(
        chat=False,
        prompts=prompts,
        settings=settings,
        logprobs=best is not None,
        top_logprobs=best or 0,
        echo=echo,
    )
    best_of = body.read("best_of", ANSWERS, body.get("n"))
    if best_of != body.get("n"):
        if "n" in body or "answers" in body:
            raise RequestError("best_of gives one answer: leave n and answers out", "best_of")
        request = replace(request, settings=replace(settings, answers=best_of))
    request = _with_common(request, body, served)
    if body.get("suffix"):
        raise RequestError("suffix is not supported: these models only continue a text", "suffix")
    if request.echo and request.prefix:
        raise RequestError("prefix and echo do not go together: put it into the prompt", "prefix")
    return request


def _with_common(request: CompletionRequest, body: Body, served: ServedModel) -> CompletionRequest:
    limits = served.limits
    stream = body.read("stream", check_flag, False)
    listed = body.read("prompt_logprobs", Number(0, limits.top_logprobs, whole=True))
    if listed is not None and stream:
        raise RequestError("prompt_logprobs come with a whole answer: leave stream out", "stream")
    request = replace(request, prompt_logprobs=listed)
    options = Body(body.read("stream_options", check_object, {}))
    options.check_names(("include_usage", "include_obfuscation"))
    n = body.read("n", Number(1, limits.answers, whole=True), 1)
    several = request.settings.answers
    drawn = (
        several
        if isinstance(several, int)
        else Profile.load(request.settings.profile).answers.count
    )
    if n * drawn * len(request.prompts) > limits.answers:
        raise RequestError(f"a request may ask for {limits.answers} answers at most", "n")
    if several != 1 and ("forced" in body or request.scored):
        raise RequestError(
            "with forced, prompt_logprobs, or echo and logprobs, there is one answer", "answers"
        )
    if "stream_options" in body and not stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    constraint, named = constraints.read_constraint(body)
    return replace(
        request,
        settings=replace(
            request.settings,
            constraint=constraint,
            top_logprobs=max(request.top_logprobs, listed or 0),
        ),
        constrained_by=named,
        n=n,
        stream=stream,
        include_usage=options.read("include_usage", check_flag, False),
        prefix=body.read("prefix", _text_or_tokens(served), ()),
        forced=body.read("forced", _tokens(served), ()),
    )


def _refuse_unsupported(body: Body) -> None:
    for name, empty in _UNSUPPORTED.items():
        if name in body and body.get(name) not in empty:
            raise RequestError(f"{name} is not supported: leave it out", name, code="unsupported")


def _messages(limits: Limits) -> Rule:
    def check(value: Any) -> tuple[Message, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError(f"must be a list of messages, at least one, not {shown(value)}")
        if len(value) > limits.messages:
            raise ValueError(f"may hold {limits.messages} at most")
        return tuple(_read_message(message, number) for number, message in enumerate(value))

    return check


def _read_message(value: Any, number: int) -> Message:
    where = f"messages[{number}]"
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be an object with role and content", "messages")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(ROLES)
        raise RequestError(f"{where}.role must be one of {known}, not {shown(role)}", "messages")
    content, calls = value.get("content"), value.get("tool_calls")
    read: Message = {"role": ROLES[role]}
    if role == "assistant":
        # What is null is rendered as nothing: some templates take no other content.
        read["content"] = _read_content("" if content in (None, []) else content, where)
        if reasoning := value.get("reasoning_content"):
            read["reasoning_content"] = _read_content(reasoning, where)
        if calls not in (None, []):
            read["tool_calls"] = tools.read_calls(calls, where)
        return read
    read["content"] = _read_content(content, where)
    if role == "tool":
        read["tool_call_id"] = tools.read_id(value.get("tool_call_id"), f"{where}.tool_call_id")
    return read


def _read_content(content: Any, where: str) -> str:
    """Return the text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise RequestError(f"{where}.content must be a text, not {shown(content)}", "messages")
    pieces = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            message = f"{where}.content may hold parts of type text only: this model reads text"
            raise RequestError(message, "messages", code="unsupported")
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{where}.content has a part without its text", "messages")
        pieces.append(part["text"])
    return "".join(pieces)


def _prompts(served: ServedModel) -> Rule:
    check_one = _text_or_tokens(served)

    def check(value: Any) -> tuple[Prompt, ...]:
        several = isinstance(value, list) and any(isinstance(item, str | list) for item in value)
        if not several:
            return (check_one(value),)
        if len(value) > served.limits.prompts:
            raise ValueError(f"may hold {served.limits.prompts} at most")
        return tuple(check_one(item) for item in value)

    return check


def _text_or_tokens(served: ServedModel) -> Rule:
    check_tokens = _tokens(served)
    return lambda value: value if isinstance(value, str) else check_tokens(value)


def _tokens(served: ServedModel) -> Rule:
    size = served.config.vocab_size

    def check(value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise ValueError(f"must be a text or token ids, not {shown(value)}")
        if beyond := [token for token in value if not 0 <= token < size]:
            raise ValueError(f"holds token {shown(beyond[0])}, and the model has {size}")
        return tuple(value)

    return check
