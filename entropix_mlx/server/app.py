"""The HTTP interface: routes and errors in OpenAI's shape, and a page of its own at /."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..answer.promise import ANSWERS, Promise, check_kind, parse_mark
from ..errors import EntropixError
from ..profiles.fields import check_text
from . import page
from .batching import Batcher
from .intake import Parse
from .metrics import ServerMetrics
from .middleware import CLIENT_GONE, Access, Guard, error_response
from .models import Models, describe
from .openai import parse as openai
from .openai.body import Body
from .openai.errors import RequestError, as_request_error
from .openai.sampling import EXPLAINED, read_settings
from .protocols import messages
from .protocols.responses import StoredResponses
from .streaming import STREAM, Monitor, Responder

PROMETHEUS = "text/plain; version=0.0.4"


@dataclass(frozen=True)
class Server:
    """Everything that the routes need."""

    models: Models
    batcher: Batcher
    metrics: ServerMetrics
    access: Access
    monitor: Monitor


class Api:
    """The routes of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._models = server.models
        self._began = int(time.time())
        limits = server.models.limits
        self._responses = StoredResponses(limits.stored_responses, limits.stored_characters)

    def routes(self) -> list[Route]:
        routes = [
            self._completions("/v1/chat/completions", openai.parse_chat),
            self._completions("/v1/completions", openai.parse_completion),
            self._completions("/v1/responses", self._responses.parse),
            Route("/v1/responses/{name}", self.response),
            self._completions(messages.PATH, messages.parse_messages),
            Route(f"{messages.PATH}/count_tokens", self.count_tokens, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/feedback", self.feedback, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/load", self.load, methods=["POST"]),
            Route("/v1/models/unload", self.unload, methods=["POST"]),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/explain", self.explain, methods=["POST"]),
            Route("/", self.page),
            Route("/web/{name}", self.asset),
        ]
        if self._server.monitor.enabled:
            routes.append(Route("/v1/monitor", self.monitor))
        return routes

    def _completions(self, path: str, parse: Parse) -> Route:
        return Route(path, functools.partial(self._answer, parse=parse), methods=["POST"])

    async def models(self, request: Request) -> Response:
        self._check(request)
        listed = [self._model(name) for name in self._models.listed()]
        return JSONResponse({"object": "list", "data": listed})

    async def model(self, request: Request) -> Response:
        self._check(request)
        return JSONResponse(self._model(request.path_params["name"]))

    async def load(self, request: Request) -> Response:
        body, _ = await self._body(request)
        async with self._models.use(body) as model:
            return JSONResponse(self._model(model.served.name))

    async def unload(self, request: Request) -> Response:
        body, _ = await self._body(request)
        name = body.require("model", check_text)
        await self._models.unload(name)
        return JSONResponse(self._model(name))

    async def response(self, request: Request) -> Response:
        self._check(request)
        return JSONResponse(self._responses.get(request.path_params["name"]))

    async def count_tokens(self, request: Request) -> Response:
        async with contextlib.AsyncExitStack() as held:
            body, size = await self._body(request, held)
            async with self._models.use(body) as model:
                counted = await model.intake.parse(body, size, messages.parse_counted)
                [choice] = await model.intake.tokenize(counted, size)
        return JSONResponse({"input_tokens": len(choice.prompt)})

    async def feedback(self, request: Request) -> Response:
        """Mark an answer: ``right``, the ``scores`` that came with it, and perhaps its ``kind``."""
        body, _ = await self._body(request)
        body.check_names(("right", "score", "scores", "kind", "model"))
        model = self._models.find(body.read("model", check_text)).source.name
        kind = body.read("kind", check_kind, ANSWERS)
        try:
            mark = parse_mark(body.without(("model", "kind")))
        except ValueError as error:
            raise RequestError(str(error)) from None
        promise = await run_in_threadpool(_marked, model, kind, *mark)
        known = {"object": "feedback", "model": model, "kind": kind}
        return JSONResponse(known | promise.state.report())

    async def embeddings(self, request: Request) -> Response:
        message = "this server makes no embeddings: its model was trained to write, not to compare"
        raise RequestError(message, status=404, code="unsupported")

    async def health(self, request: Request) -> Response:
        batcher = self._server.batcher
        status = "shutting down" if batcher.draining else "ok"
        status = status if batcher.alive else "the model's thread has ended"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        self._check(request)
        return Response(self._server.metrics.text(), media_type=PROMETHEUS)

    async def page(self, request: Request) -> Response:
        return page.index()

    async def asset(self, request: Request) -> Response:
        return page.asset(request.path_params["name"])

    async def explain(self, request: Request) -> Response:
        """Say how a profile divides H and V, and why it decided a ``step`` as it did."""
        async with contextlib.AsyncExitStack() as held:
            body, _ = await self._body(request, held)
            body.check_names((*EXPLAINED, "model", "step"))
            async with self._models.use(body) as model:
                settings = read_settings(body, model.served, model.served.settings.max_tokens)
            return JSONResponse(page.explanation(settings, body.get("step")))

    async def monitor(self, request: Request) -> Response:
        self._check(request)
        return StreamingResponse(self._server.monitor.records(), headers=STREAM)

    def _check(self, request: Request) -> None:
        self._server.access.check_key(request.headers)

    async def _body(
        self, request: Request, held: contextlib.AsyncExitStack | None = None
    ) -> tuple[Body, int]:
        """Return the body of a request, and its size."""
        self._check(request)
        async with contextlib.AsyncExitStack() as own:
            content = await self._models.bodies.read(request, held or own)
            parse = functools.partial(Body.parse, content)
            return await self._models.bodies.parse(len(content), parse), len(content)

    def _model(self, name: str) -> dict[str, Any]:
        card = describe(self._models.find(name), name)
        card["created"] = self._began
        card["entropix"]["monitor"] = self._server.monitor.enabled
        return card

    async def _answer(self, request: Request, parse: Parse) -> Any:
        self._check(request)
        self._server.batcher.check_open()
        server = self._server
        return Responder(server.models, parse, server.batcher, server.monitor)


def make_app(server: Server) -> Guard:
    api = Api(server)
    handlers: Any = {
        HTTPException: _http_error,
        EntropixError: _refusal,
        ClientDisconnect: _gone,
    }
    app = Starlette(routes=api.routes(), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, server.access, server.metrics)


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


def _marked(model: str, kind: str, right: bool, score: Any) -> Promise:
    promise = Promise(model, kind)
    promise.mark(right, score)
    return promise
