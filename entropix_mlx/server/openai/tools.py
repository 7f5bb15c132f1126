"""Fields of a request that name functions, and messages that call them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...profiles.fields import check_flag, shown
from ...tools.formats import NO_PARAMETERS, Function
from ...tools.reader import ID_LENGTH
from ..model_info import Limits
from .body import Body
from .errors import RequestError

Json = dict[str, Any]

FIELDS = ("tools", "tool_choice", "parallel_tool_calls")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FORM = '{"type": "function", "function": {"name": …, "parameters": {…}}}'


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


def read_tools(body: Body, limits: Limits) -> Tools | None:
    """Return what a request says about tools; None if the model shall not know any."""
    several = body.read("parallel_tool_calls", check_flag, True)
    listed = body.get("tools")
    choice = body.get("tool_choice") or "auto"
    if not isinstance(listed, list | None):
        raise RequestError(f"tools must be a list, not {shown(listed)}", "tools")
    if listed and len(listed) > limits.tools:
        raise RequestError(f"tools may hold {limits.tools} at most", "tools")
    functions = [_read_function(tool, f"tools[{n}]") for n, tool in enumerate(listed or ())]
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise RequestError("tools has two functions of one name: rename one of them", "tools")
    if choice not in ("none", "auto", "required"):
        name = _chosen(choice)
        functions = [function for function in functions if function.name == name]
        if not functions:
            known = ", ".join(names[:20]) or "none"
            message = f"tool_choice names {shown(name)}, and tools has {known}"
            raise RequestError(message, "tool_choice")
        several = False
    elif choice == "required" and not functions:
        raise RequestError("tool_choice is required, and there are no tools", "tool_choice")
    if not functions or choice == "none":
        return None
    return Tools(
        tuple(map(_shown_to_model, listed or ())), tuple(functions), choice != "auto", several
    )


def _shown_to_model(tool: Json) -> Json:
    given = {name: tool["function"].get(name) for name in ("name", "description", "parameters")}
    empty = {"description": "", "parameters": NO_PARAMETERS}
    function = {name: value or empty.get(name) for name, value in given.items()}
    return {"type": "function", "function": function}


def _chosen(choice: Any) -> Any:
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict) or choice.get("type") != "function":
        form = '{"type": "function", "function": {"name": …}}'
        message = f"tool_choice must be none, auto, required or {form}, not {shown(choice)}"
        raise RequestError(message, "tool_choice")
    return function.get("name")


def _read_function(tool: Any, where: str) -> Function:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise RequestError(f"{where} must be {_FORM}: {shown(kind)} is not supported", "tools")
    fields = tool.get("function")
    if not isinstance(fields, dict):
        raise RequestError(f"{where} must be {_FORM}", "tools")
    try:
        Body(tool).check_names(("type", "function"))
        Body(fields).check_names(("name", "description", "parameters", "strict"))
    except RequestError as error:
        raise RequestError(f"{where}: {error}", "tools", code=error.code) from None
    name, parameters = fields.get("name"), fields.get("parameters") or NO_PARAMETERS
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wanted = "1 to 64 letters, digits, _ or -"
        raise RequestError(f"{where}.function.name must be {wanted}, not {shown(name)}", "tools")
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        message = f"{where}.function.parameters must be the JSON schema of an object"
        raise RequestError(message, "tools")
    return Function(name, {"type": "object", **parameters})


def read_calls(calls: Any, where: str) -> list[Json]:
    """Return the calls of a message of the assistant, with their arguments as objects."""
    if not isinstance(calls, list) or not calls:
        raise RequestError(f"{where}.tool_calls must be a list of calls", "messages")
    return [_read_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]


def _read_call(call: Any, where: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} must have a function with a name and arguments", "messages")
    arguments = function.get("arguments") or "{}"
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        read = None
    if not isinstance(read, Mapping):
        message = f"{where}.function.arguments must be a JSON object, not {shown(arguments)}"
        raise RequestError(message, "messages")
    named = {"name": function["name"], "arguments": read}
    return {"id": read_id(call.get("id"), f"{where}.id"), "type": "function", "function": named}


def read_id(given: Any, where: str) -> str:
    """Return the id of a call in nine letters or digits: Mistral's templates take no other."""
    if not isinstance(given, str):
        raise RequestError(f"{where} must be a text, not {shown(given)}", "messages")
    fits = len(given) == ID_LENGTH and given.isalnum()
    return given if fits else hashlib.sha256(given.encode()).hexdigest()[:ID_LENGTH]
