"""The HTTP interface: routes, what is around them, and errors in the shape of each protocol."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from h11 import LocalProtocolError
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import EntropixError
from ..step import Step
from ..traces import page
from .access import Access
from .answering import AnswerRoute, read_body
from .engine import ServingEngine
from .errors import UNKNOWN_FIELD, RequestError, as_request_error
from .messages import MessagesProtocol
from .metrics import ServerMetrics
from .models import Models
from .protocols import ChatProtocol, Protocol, ScoreProtocol
from .requests import ExplainRequest, parse_body, refusal
from .responses import ResponsesProtocol

ANSWERS: Mapping[str, type[Protocol]] = {
    "/v1/chat/completions": ChatProtocol,
    "/v1/completions": Protocol,
    "/v1/score": ScoreProtocol,
    "/v1/responses": ResponsesProtocol,
    "/v1/messages": MessagesProtocol,
}
"""The routes that answer."""
OPEN, FILES = ("/", "/health"), "/web/"
"""Where no key is asked for: the page, which asks for it, and what it loads."""
CLIENT_GONE = 499
"""The status under which a request is counted whose client did not wait for any, as in nginx."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
"""Names of this machine: a page could point a name of its own at 127.0.0.1."""
PROMETHEUS = "text/plain; version=0.0.4"
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""The page may talk to its own server and to nobody else, and no text may become markup."""
KINDS = {"js": "text/javascript", "css": "text/css"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Server:
    """Everything that the routes need."""

    models: Models
    engine: ServingEngine
    access: Access

    def routes(self) -> list[Route]:
        answers = [
            Route(path, AnswerRoute(self.models, self.engine, kind), methods=["POST"])
            for path, kind in ANSWERS.items()
        ]
        return [
            *answers,
            Route("/v1/explain", self.explain, methods=["POST"]),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/", self.index),
            Route("/web/{name}", self.asset),
        ]

    async def list_models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": self.models.cards()})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self.models.card(request.path_params["name"]))

    async def health(self, request: Request) -> Response:
        status = "shutting down" if self.engine.draining else "ok"
        status = status if self.engine.alive else "the model's thread has ended"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self.engine.metrics.text(), media_type=PROMETHEUS)

    async def index(self, request: Request) -> Response:
        return Response(page.index(), media_type="text/html", headers=PAGE_HEADERS)

    async def asset(self, request: Request) -> Response:
        """Return a file of the page."""
        name = request.path_params["name"]
        if name not in {file.name for file in page.WEB.iterdir()}:
            raise HTTPException(404)
        kind = KINDS.get(name.rpartition(".")[2], "text/plain")
        content = page.WEB.joinpath(name).read_bytes()
        return Response(content, media_type=kind, headers=PAGE_HEADERS)

    async def explain(self, request: Request) -> Response:
        """Say how a profile divides H and V, and why it decided a ``step`` as it did."""
        content = await read_body(request)
        stated = ExplainRequest.model_validate(parse_body(content))
        async with self.models.use(stated.model) as prompts:
            profile = stated.profile_of(prompts.served)
            sampler = stated.sampler or prompts.served.settings.sampler
        told = page.regions(profile, sampler)
        if stated.step is not None:
            try:
                step = Step.from_dict(stated.step)
            except (ValueError, TypeError, AttributeError) as error:
                raise RequestError(f"step is no record of a step: {error}", "step") from None
            told |= {"step": page.explained(profile if told["tree"] else None, step)}
        return JSONResponse(told)


def make_app(server: Server) -> Starlette:
    routes, access = server.routes(), server.access
    counted = frozenset(route.path for route in routes)
    middleware = [
        Middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        ),
        Middleware(Guard, access=access, metrics=server.engine.metrics, routes=counted),
    ]
    if access.only_local:
        trusted = Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS, www_redirect=False)
        middleware.insert(0, trusted)
    kinds = (HTTPException, EntropixError, ValidationError, ClientDisconnect)
    app = Starlette(
        routes=routes, exception_handlers=dict.fromkeys(kinds, respond), middleware=middleware
    )
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True)
class Guard:
    """A middleware that counts responses, refuses who may not ask, and reports faults."""

    app: ASGIApp
    access: Access
    metrics: ServerMetrics
    routes: frozenset[str]
    """The paths that are counted by their names; all others are counted together."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers, status = scope["path"], Headers(scope=scope), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self.access.check_origin(headers)
            if not (path in OPEN or path.startswith(FILES)):
                self.access.check_key(headers)
            await self.app(scope, receive, noted)
        except LocalProtocolError:
            pass  # what followed was no HTTP: uvicorn has refused the request already
        except Exception as error:
            if not isinstance(error, RequestError):
                _log.exception("a request failed")
            if not status:
                response = await respond(Request(scope), error)
                await response(scope, receive, noted)
        finally:
            route = path if path in self.routes else "other"
            self.metrics.requests.labels(route, status or CLIENT_GONE).inc()


async def respond(request: Request, error: Exception) -> Response:
    """Return the response to an error, in the shape of the protocol that its path belongs to."""
    path, headers = request.url.path, {}
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)  # which is counted, and reaches nobody
    if isinstance(error, ValidationError):
        error = refusal(error)
    elif isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        known = ", ".join(("GET /v1/models, POST /v1/explain", *ANSWERS))
        message = f"there is no {request.method[:20]} {path[:200]} here: the routes are {known}"
        error = RequestError(message, status=error.status_code, code="unknown_url")
    wrong = as_request_error(error)
    protocols = (kind for start, kind in ANSWERS.items() if path.startswith(start))
    protocol = next(protocols, Protocol)
    fields = protocol.request.model_fields
    if wrong.param == "prompt" and "messages" in fields:
        wrong.param = "messages"
    if wrong.param in fields and wrong.code != UNKNOWN_FIELD:
        wrong.param = fields[wrong.param].alias or wrong.param
    return JSONResponse(protocol.described(wrong), wrong.status, headers | wrong.headers)
