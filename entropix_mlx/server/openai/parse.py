"""OpenAI's requests, read and checked: what a body asks for, as one record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...profiles.fields import shown
from ...settings import Settings
from ..model_info import ServedModel
from . import sampling
from .body import Body, is_token
from .errors import RequestError

Message = dict[str, str]
Prompt = tuple[Message, ...] | str | tuple[int, ...]
"""Messages of a conversation, a text to continue, or token ids."""

COMPLETION_TOKENS = 16
"""The `max_tokens` of /v1/completions where a request names none, as OpenAI has it."""

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

_BOTH = (
    *sampling.FIELDS,
    *("model", "n", "stream", "stream_options", "logprobs", "prefix", "forced", "begin", "user"),
)
_CHAT = (*_BOTH, "messages", "top_logprobs", "response_format", "tools", "tool_choice")
_COMPLETION = (*_BOTH, "prompt", "echo", "best_of", "suffix")
_WITHOUT_EFFECT = (
    *("metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"),
    *("prompt_cache_key", "verbosity"),
)
"""Fields of OpenAI's that would change nothing in an answer."""
_UNSUPPORTED = (
    *("functions", "function_call", "modalities", "audio", "prediction", "reasoning_effort"),
    "web_search_options",
)


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
    echo: bool = False
    prefix: str | tuple[int, ...] = ()
    """What the answer begins with; it is no part of what is sent."""
    forced: tuple[int, ...] = ()
    """Tokens that come next, whatever would be drawn; they are sent like all others."""

    @property
    def scored(self) -> bool:
        """Whether the log probabilities of the prompts' own tokens are sent."""
        return self.echo and self.logprobs


def parse_chat(body: Body, served: ServedModel) -> CompletionRequest:
    """Read the body of /v1/chat/completions.

    Raises:
        RequestError: a field is wrong, unknown or not supported, by its name.
    """
    body.check_names((*_CHAT, *_WITHOUT_EFFECT, *_UNSUPPORTED))
    _refuse_unsupported(body)
    messages = _read_messages(body)
    logprobs = body.flag("logprobs")
    best = body.whole("top_logprobs", 0, served.limits.top_logprobs, 0) or 0
    if best and not logprobs:
        raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
    settings = sampling.read_settings(body, served, served.settings.max_tokens)
    settings = replace(settings, top_logprobs=best)
    request = CompletionRequest(
        chat=True, prompts=(messages,), settings=settings, logprobs=logprobs
    )
    return _with_common(request, body, served)


def parse_completion(body: Body, served: ServedModel) -> CompletionRequest:
    """Read the body of /v1/completions.

    Raises:
        RequestError: a field is wrong, unknown or not supported, by its name.
    """
    body.check_names((*_COMPLETION, *_WITHOUT_EFFECT, *_UNSUPPORTED))
    _refuse_unsupported(body)
    echo = body.flag("echo")
    best = body.whole("logprobs", 0, served.limits.top_logprobs)
    settings = sampling.read_settings(body, served, COMPLETION_TOKENS, least=0 if echo else 1)
    settings = replace(settings, top_logprobs=best or 0)
    prompts = _read_prompts(body, served)
    request = CompletionRequest(
        chat=False, prompts=prompts, settings=settings, logprobs=best is not None, echo=echo
    )
    request = _with_common(request, body, served)
    if body.whole("best_of", 1, served.limits.answers, request.n) != request.n:
        raise RequestError("best_of is not supported: ask for n answers and compare", "best_of")
    if body.text("suffix"):
        raise RequestError("suffix is not supported: the models here only go on", "suffix")
    if request.echo and request.prefix:
        raise RequestError("prefix and echo do not go together: put it into the prompt", "prefix")
    return request


def check_model(body: Body, served: ServedModel) -> None:
    """Check that a request names the model that is served, or none.

    Raises:
        RequestError: it names another: nothing is ever loaded for a request.
    """
    name = body.text("model")
    if name is not None and name != served.name:
        message = f"there is no model {name[:100]!r} here, only {served.name!r}"
        raise RequestError(message, "model", status=404, code="model_not_found")


def _with_common(request: CompletionRequest, body: Body, served: ServedModel) -> CompletionRequest:
    """Read what both kinds of request have."""
    limits = served.limits
    options = Body(body.table("stream_options"))
    options.check_names(("include_usage", "include_obfuscation"))
    n = body.whole("n", 1, limits.answers, 1) or 1
    if n * len(request.prompts) > limits.answers:
        raise RequestError(f"a request may ask for {limits.answers} answers at most", "n")
    stream = body.flag("stream")
    if "stream_options" in body and not stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    return replace(
        request,
        n=n,
        stream=stream,
        include_usage=options.flag("include_usage"),
        prefix=_read_prefix(body, served),
        forced=_read_forced(body, served),
    )


def _refuse_unsupported(body: Body) -> None:
    for name in _UNSUPPORTED:
        if name in body:
            raise RequestError(f"{name} is not supported: leave it out", name, code="unsupported")
    if body.get("tools") not in (None, []) or body.get("tool_choice") not in (None, "none", "auto"):
        name = "tools" if "tools" in body else "tool_choice"
        raise RequestError("tools are not supported: leave them out", name, code="unsupported")
    form = body.table("response_format")
    if form and form != {"type": "text"}:
        raise RequestError(
            f"response_format {shown(form.get('type'))} is not supported: answers are free text",
            "response_format",
            code="unsupported",
        )


def _read_messages(body: Body) -> tuple[Message, ...]:
    listed = body.get("messages")
    if not isinstance(listed, list) or not listed:
        body.refuse("messages", "must be a list of messages, at least one")
    return tuple(_read_message(value, number) for number, value in enumerate(listed))


def _read_message(value: Any, number: int) -> Message:
    where = f"messages[{number}]"
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be an object with role and content", "messages")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(ROLES)
        raise RequestError(f"{where}.role must be one of {known}, not {shown(role)}", "messages")
    return {"role": ROLES[role], "content": _read_content(value.get("content"), where)}


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


def _read_prompts(body: Body, served: ServedModel) -> tuple[Prompt, ...]:
    value = body.get("prompt")
    if (prompt := _text_or_tokens(value, "prompt", served)) is not None:
        return (prompt,)
    if not isinstance(value, list):
        body.refuse("prompt", "must be a text, token ids, or a list of either")
    if len(value) > served.limits.prompts:
        raise RequestError(f"prompt may hold {served.limits.prompts} at most", "prompt")
    prompts = [_text_or_tokens(item, "prompt", served) for item in value]
    found = tuple(prompt for prompt in prompts if prompt is not None)
    if len(found) < len(prompts):
        body.refuse("prompt", "must hold texts or lists of token ids")
    return found


def _read_prefix(body: Body, served: ServedModel) -> str | tuple[int, ...]:
    prefix = _text_or_tokens(body.get("prefix") or [], "prefix", served)
    return body.refuse("prefix", "must be a text or token ids") if prefix is None else prefix


def _read_forced(body: Body, served: ServedModel) -> tuple[int, ...]:
    name = "begin" if "begin" in body else "forced"  # its former name
    forced = _text_or_tokens(body.get(name) or [], name, served)
    return forced if isinstance(forced, tuple) else body.refuse(name, "must be token ids")


def _text_or_tokens(value: Any, name: str, served: ServedModel) -> str | tuple[int, ...] | None:
    """Return a text or a list of tokens that the model has; None for anything else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(is_token(item) for item in value):
        return None
    size = served.config.vocab_size
    if beyond := [token for token in value if not 0 <= token < size]:
        message = f"{name} holds token {shown(beyond[0])}, and the model has {size}"
        raise RequestError(message, name)
    return tuple(value)
