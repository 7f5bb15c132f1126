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

INVALID = "invalid_request_error"
SERVER = "server_error"

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
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        kind: str = INVALID,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Make an error about a field, `param`; `code` is a word for programs."""
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code
        self.kind = kind
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        details = {"type": self.kind, "param": self.param, "code": self.code}
        return {"error": {"message": str(self), **details}}


def as_request_error(error: Exception) -> RequestError:
    """Return the response to an error of the library, or to a bug."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, NonFiniteLogitsError):
        return RequestError(str(error), status=500, kind=SERVER, code="non_finite_logits")
    if not isinstance(error, EntropixError):
        return internal_error()
    code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
    named = (param for kind, param in _PARAMS.items() if isinstance(error, kind))
    return RequestError(str(error), next(named, None), code=code)


def internal_error() -> RequestError:
    """Return the response to a bug, which says nothing that a client could not know."""
    message = "the server made a mistake, which its log describes"
    return RequestError(message, status=500, kind=SERVER, code="internal_error")


def busy_error(why: str, headers: dict[str, str] | None = None) -> RequestError:
    """Return the response while there is no place for more."""
    return RequestError(
        f"{why}: ask again in some seconds",
        status=429,
        code="queue_full",
        kind=SERVER,
        headers={"Retry-After": str(RETRY_SECONDS), **(headers or {})},
    )


def stopping_error() -> RequestError:
    """Return the response while the server shuts down."""
    message = "the server is shutting down: ask again later"
    headers = {"Connection": "close", "Retry-After": str(RETRY_SECONDS)}
    return RequestError(message, status=503, kind=SERVER, code="shutting_down", headers=headers)
