"""Fields of a request that name functions, and messages that call them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from ...profiles.fields import shown
from ...tools.formats import NO_PARAMETERS, Function
from ...tools.reader import ID_LENGTH
from .errors import RequestError
from .fields import Fields, Json, Object, Text

MOST_TOOLS = 128


def _check_parameters(schema: Json) -> Json:
    if schema.get("type", "object") != "object":
        raise ValueError("must be the JSON schema of an object")
    return schema


class StatedFunction(Fields):
    """A function as a request states it."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: Text = ""
    parameters: Annotated[Object, AfterValidator(_check_parameters)] = NO_PARAMETERS
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


def offered_tools(stated: Sequence[Tool], choice: Any, several: bool) -> Tools | None:
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
        name = _chosen(choice)
        functions = [function for function in functions if function.name == name]
        several = False
        if not functions:
            known = ", ".join(names[:20]) or "none"
            message = f"tool_choice names {shown(name)}, and tools has {known}"
            raise RequestError(message, "tool_choice")
    elif choice == "required" and not functions:
        raise RequestError("tool_choice is required, and there are no tools", "tool_choice")
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


def _read_arguments(stated: Any) -> Json:
    try:
        read = json.loads(stated or "{}") if isinstance(stated, str) else stated
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, Mapping):
        raise ValueError(f"must be a JSON object, not {shown(stated)}")
    return dict(read)


def _short_id(stated: str) -> str:
    """Return the id of a call in nine letters or digits: Mistral's templates take no other."""
    fits = len(stated) == ID_LENGTH and stated.isalnum()
    return stated if fits else hashlib.sha256(stated.encode()).hexdigest()[:ID_LENGTH]


CallId = Annotated[Text, AfterValidator(_short_id)]


class CalledFunction(BaseModel):
    """A function with the arguments that it was called with."""

    name: Text
    arguments: Annotated[Json, BeforeValidator(_read_arguments)] = {}


class StatedCall(BaseModel):
    """A call in a message of the assistant."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
