"""Errors in OpenAI's shape: ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from typing import Any

from ...errors import (
    ContextLengthError,
    EntropixError,
    NonFiniteLogitsError,
    ProfileError,
    PromptError,
    SamplerError,
)

RETRY_SECONDS = 5
"""The `Retry-After` of clients for whom there is no place."""

_PARAMS: dict[type[EntropixError], str] = {
    ContextLengthError: "prompt",
    PromptError: "prompt",
    ProfileError: "profile",
    SamplerError: "sampler",
}


class RequestError(EntropixError):
    """A request that gets an error in place of an answer."""

    def __init__(
        self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None
    ) -> None:
        """Make an error about a field, `param`; `code` is a word for programs."""
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
        found = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.status in (429, 503):
            found["Retry-After"] = str(RETRY_SECONDS)
        if self.status in (408, 413, 503):  # what is left of the body is not read
            found["Connection"] = "close"
        return found


def as_request_error(error: Exception) -> RequestError:
    """Return the response to an error of the library, or to a bug."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, NonFiniteLogitsError):
        return RequestError(str(error), status=500, code="non_finite_logits")
    if not isinstance(error, EntropixError):
        return internal_error()
    code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
    named = (param for kind, param in _PARAMS.items() if isinstance(error, kind))
    return RequestError(str(error), next(named, None), code=code)


def internal_error() -> RequestError:
    """Return the response to a bug, which says nothing that a client could not know."""
    message = "the server made a mistake, which its log describes"
    return RequestError(message, status=500, code="internal_error")


def stopping_error() -> RequestError:
    """Return the response while the server shuts down."""
    message = "the server is shutting down: ask again later"
    return RequestError(message, status=503, code="shutting_down")
