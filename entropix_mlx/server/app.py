"""The HTTP interface: routes and errors in OpenAI's shape, and a page of its own at /."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..errors import EntropixError
from . import page
from .access import CLIENT_GONE, LOCAL_HOSTS, Access, Guard, error_response
from .answering import Answering, Parse, fields_of
from .engine import ServingEngine
from .models import Models
from .openai.errors import RequestError, as_request_error
from .openai.requests import parse_chat, parse_completion, read_fields
from .openai.settings import ExplainedFields, profile_of
from .protocols import messages
from .protocols.responses import parse_responses

PROMETHEUS = "text/plain; version=0.0.4"


@dataclass(frozen=True)
class Server:
    """Everything that the routes need."""

    models: Models
    engine: ServingEngine
    access: Access


class Api:
    """The routes of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._began = int(time.time())

    def routes(self) -> list[Route]:
        return [
            self._completions("/v1/chat/completions", parse_chat),
            self._completions("/v1/completions", parse_completion),
            self._completions("/v1/responses", parse_responses),
            self._completions(messages.PATH, messages.parse_messages),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/explain", self.explain, methods=["POST"]),
            Route("/", self.page),
            Route("/web/{name}", self.asset),
        ]

    def _completions(self, path: str, parse: Parse) -> Route:
        return Route(path, functools.partial(self._answer, parse=parse), methods=["POST"])

    async def _answer(self, request: Request, parse: Parse) -> Any:
        self._check(request)
        self._server.engine.check_open()
        return Answering(self._server.models, self._server.engine, parse)

    async def models(self, request: Request) -> Response:
        self._check(request)
        return JSONResponse({"object": "list", "data": self._cards()})

    async def model(self, request: Request) -> Response:
        self._check(request)
        return JSONResponse(self._cards(request.path_params["name"])[0])

    async def embeddings(self, request: Request) -> Response:
        message = "this server makes no embeddings: its model was trained to write, not to compare"
        raise RequestError(message, status=404, code="unsupported")

    async def health(self, request: Request) -> Response:
        engine = self._server.engine
        status = "shutting down" if engine.draining else "ok"
        status = status if engine.alive else "the model's thread has ended"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        self._check(request)
        return Response(self._server.engine.metrics.text(), media_type=PROMETHEUS)

    async def page(self, request: Request) -> Response:
        return page.index()

    async def asset(self, request: Request) -> Response:
        return page.asset(request.path_params["name"])

    async def explain(self, request: Request) -> Response:
        """Say how a profile divides H and V, and why it decided a ``step`` as it did."""
        self._check(request)
        models = self._server.models
        stated = read_fields(ExplainedFields, await fields_of(request, models.limits))
        async with models.use(stated.model) as model:
            profile = profile_of(stated, model.served)
            sampler = stated.sampler or model.served.settings.sampler
        return JSONResponse(page.explanation(sampler, profile, stated.step))

    def _check(self, request: Request) -> None:
        self._server.access.check_key(request.headers)

    def _cards(self, name: str | None = None) -> list[dict[str, Any]]:
        cards = self._server.models.describe(name)
        return [card | {"created": self._began} for card in cards]


def make_app(server: Server) -> Starlette:
    access = server.access
    middleware = [
        Middleware(Guard, access=access, metrics=server.engine.metrics),
        Middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        ),
    ]
    if access.only_local:
        trusted = Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS, www_redirect=False)
        middleware.insert(1, trusted)
    handlers: Any = {
        HTTPException: _http_error,
        EntropixError: _refusal,
        ClientDisconnect: _gone,
    }
    app = Starlette(routes=Api(server).routes(), exception_handlers=handlers, middleware=middleware)
    app.router.redirect_slashes = False
    return app


async def _refusal(request: Request, error: EntropixError) -> Response:
    return error_response(as_request_error(error), request.url.path)


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=CLIENT_GONE)  # which is counted, and reaches nobody


async def _http_error(request: Request, error: HTTPException) -> Response:
    where = f"{request.method[:20]} {request.url.path[:200]}"
    known = (
        "POST /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages,"
        " and GET /v1/models"
    )
    message = f"there is no {where} here: the routes are {known}"
    wrong = RequestError(message, status=error.status_code, code="unknown_url")
    wrong.headers = dict(error.headers or {})
    return error_response(wrong, request.url.path)
