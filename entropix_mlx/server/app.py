"""The HTTP interface: routes and errors in OpenAI's shape, and a page of its own at /."""

from __future__ import annotations

import functools
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
from .openai.fields import read_fields
from .openai.requests import ExplainedFields, parse_chat, parse_completion
from .protocols.messages import parse_messages
from .protocols.responses import parse_responses

PROMETHEUS = "text/plain; version=0.0.4"


@dataclass(frozen=True)
class Server:
    """Everything that the routes need."""

    models: Models
    engine: ServingEngine
    access: Access

    def routes(self) -> list[Route]:
        return [
            self._answers("/v1/chat/completions", parse_chat),
            self._answers("/v1/completions", parse_completion),
            self._answers("/v1/responses", parse_responses),
            self._answers("/v1/messages", parse_messages),
            Route("/v1/explain", self.explain, methods=["POST"]),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/", page.index),
            Route("/web/{name}", page.asset),
        ]

    def _answers(self, path: str, parse: Parse) -> Route:
        return Route(path, functools.partial(self.answer, parse=parse), methods=["POST"])

    async def answer(self, request: Request, parse: Parse) -> Any:
        self.engine.check_room()
        return Answering(self.models, self.engine, parse)

    async def list_models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": self.models.cards()})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self.models.cards(request.path_params["name"])[0])

    async def health(self, request: Request) -> Response:
        status = "shutting down" if self.engine.draining else "ok"
        status = status if self.engine.alive else "the model's thread has ended"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self.engine.metrics.text(), media_type=PROMETHEUS)

    async def explain(self, request: Request) -> Response:
        """Say how a profile divides H and V, and why it decided a ``step`` as it did."""
        stated = read_fields(ExplainedFields, await fields_of(request, self.models.limits))
        async with self.models.use(stated.model) as model:
            profile = stated.profile_of(model.served)
            sampler = stated.sampler or model.served.settings.sampler
        return JSONResponse(page.explanation(sampler, profile, stated.step))


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
    handlers: Any = {
        HTTPException: _http_error,
        EntropixError: _refusal,
        ClientDisconnect: _gone,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, middleware=middleware)
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
    response = error_response(wrong, request.url.path)
    response.headers.update(error.headers or {})
    return response
