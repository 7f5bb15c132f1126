"""Errors in OpenAI's shape: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from typing import Any

from ..errors import (
    ConstraintError,
    ContextLengthError,
    EntropixError,
    NonFiniteLogitsError,
    ProfileError,
    PromptError,
    SamplerError,
)

RETRY_SECONDS = 5
"""The `Retry-After` of a request that the queue has no room for."""

UNSUPPORTED, BAD_CONSTRAINT, UNKNOWN_FIELD = "unsupported", "bad_constraint", "unknown_field"
"""Codes: words for programs."""

_MEANINGS: dict[type[EntropixError], tuple[str, str | None]] = {
    ContextLengthError: ("prompt", "context_length_exceeded"),
    PromptError: ("prompt", None),
    ProfileError: ("profile", None),
    SamplerError: ("sampler", None),
    ConstraintError: ("constraint", BAD_CONSTRAINT),
}
"""The `param` and the `code` of the library's errors."""


class RequestError(EntropixError):
    """A request that is answered with an error."""

    def __init__(
        self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 429 else "server_error"
        return {
            "error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        }

    @property
    def headers(self) -> dict[str, str]:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.status in (429, 503):
            headers["Retry-After"] = str(RETRY_SECONDS)
        if self.status in (408, 413, 503):  # the rest of the body is not read
            headers["Connection"] = "close"
        return headers


def as_request_error(error: Exception) -> RequestError:
    """Return the response to an error of the library, or to a bug."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, NonFiniteLogitsError):
        return RequestError(str(error), status=500, code="non_finite_logits")
    if not isinstance(error, EntropixError):
        return internal_error()
    meanings = (meaning for kind, meaning in _MEANINGS.items() if isinstance(error, kind))
    param, code = next(meanings, (None, None))
    return RequestError(str(error), param, code=code)


def internal_error() -> RequestError:
    """Return the response to a bug, which tells a client nothing about this machine."""
    message = "the server made a mistake, which its log describes"
    return RequestError(message, status=500, code="internal_error")


def stopping_error() -> RequestError:
    message = "the server is shutting down: ask again later"
    return RequestError(message, status=503, code="shutting_down")
