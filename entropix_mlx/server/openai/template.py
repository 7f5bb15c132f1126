"""Fields of a chat that the model's template reads: its variables, and how much to reason."""

from __future__ import annotations

import json
from typing import Any

from ...profiles.fields import one_of
from ..model_info import Limits
from .body import Body, check_object
from .errors import RequestError

FIELDS = ("chat_template_kwargs", "reasoning_effort")

EFFORT, SWITCH = "reasoning_effort", "enable_thinking"
"""Variables of templates, under the names that most of them use."""
NO_EFFORT, USUAL_EFFORT = "none", "medium"
_EFFORTS = one_of(NO_EFFORT, "minimal", "low", USUAL_EFFORT, "high", "xhigh")
_OWN = (
    *("messages", "conversation", "tools", "xml_tools", "documents", "add_generation_prompt"),
    *("chat_template", "tokenize", "tokenizer_kwargs", "continue_final_message", "return_dict"),
    *("return_tensors", "return_assistant_tokens_mask", "padding", "truncation", "max_length"),
)
"""What other fields of a request state, or the code of a tokenizer takes beside variables."""


def read_variables(body: Body, limits: Limits) -> dict[str, Any]:
    """Return the variables that a request gives the chat template."""
    name = "chat_template_kwargs"
    given: dict[str, Any] = body.read(name, check_object, {})
    if len(json.dumps(given)) > limits.profile_bytes:
        raise RequestError(f"{name} may have {limits.profile_bytes:,} bytes at most", name)
    for own in _OWN:
        if own in given:
            raise RequestError(f"{name} may not replace {own}: leave it out", name)
    return given


def read_effort(body: Body) -> str | None:
    effort: str | None = body.read(EFFORT, _EFFORTS)
    return effort


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
