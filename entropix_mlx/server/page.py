"""The page at /: its files, and why a step was decided as it was."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..profiles.profile import Profile
from ..step import Step
from ..traces import page
from .openai.errors import RequestError

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""The page may talk to its own server and to nobody else, and no text may become markup."""
KINDS = {"js": "text/javascript", "css": "text/css"}


async def index(request: Request) -> Response:
    return Response(page.index(), media_type="text/html", headers=HEADERS)


async def asset(request: Request) -> Response:
    """Return a file of the page.

    Raises:
        RequestError: there is none of that name.
    """
    name = request.path_params["name"]
    if name not in {file.name for file in page.WEB.iterdir()}:
        raise RequestError("the page has no such file", status=404, code="unknown_url")
    kind = KINDS.get(name.rpartition(".")[2], "text/plain")
    return Response(page.WEB.joinpath(name).read_bytes(), media_type=kind, headers=HEADERS)


def explanation(sampler: str, profile: Profile, record: Any = None) -> dict[str, Any]:
    """Return the regions of H and V with their scales, and why a recorded step was decided.

    Raises:
        RequestError: the record is not that of a step.
    """
    told = page.regions(profile, sampler)
    if record is None:
        return told
    try:
        step = Step.from_dict(record)
    except (ValueError, TypeError, AttributeError) as error:
        raise RequestError(f"step is no record of a step: {error}", "step") from None
    return told | {"step": page.explained(profile if told["tree"] else None, step)}
