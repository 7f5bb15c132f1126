"""The HTTP interface: routes, limits, access and errors, all in OpenAI's shape."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import EntropixError
from . import page
from .access import Access
from .batching import Batcher
from .events import Item
from .metrics import Metrics
from .middleware import Guard, error_response
from .model_info import Served
from .monitor import Monitor
from .openai import parse as openai
from .openai.body import Body
from .openai.errors import RequestError, as_request_error
from .openai.parse import Asked
from .openai.responses import Choice
from .openai.responses import Response as Frame
from .openai.token_text import TokenText
from .prompts import to_items
from .stream_response import (
    STREAM,
    Answering,
    Asking,
    event_bytes,
    until_gone,
)

Parse = Callable[[Body, Served], Asked]
PROMETHEUS = "text/plain; version=0.0.4"
PING_SECONDS = 15.0
"""After which a monitor that has nothing to show sends an empty comment."""


@dataclass(frozen=True)
class Server:
    """Everything that the routes need."""

    served: Served
    batcher: Batcher
    metrics: Metrics
    access: Access
    monitor: Monitor


class Api:
    """The routes of a server."""

    def __init__(self, server: Server) -> None:
        """Set up."""
        self._server = server
        self._tokens = TokenText(server.batcher.tokenizer)
        # One thread: tokenizers are not made to be used by several at once.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    def routes(self) -> list[Route]:
        """Return all routes."""
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/", self.page),
        ]
        if self._server.monitor.enabled:
            routes.append(Route("/v1/monitor", self.monitor))
        return routes

    async def chat(self, request: Request) -> Any:
        """Answer /v1/chat/completions."""
        return await self._answer(request, openai.parse_chat)

    async def completions(self, request: Request) -> Any:
        """Answer /v1/completions."""
        return await self._answer(request, openai.parse_completion)

    async def models(self, request: Request) -> Response:
        """List the one model that is served."""
        self._check(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """Describe the model."""
        self._check(request)
        openai.check_model(Body({"model": request.path_params["name"]}), self._server.served)
        return JSONResponse(self._model())

    async def health(self, request: Request) -> Response:
        """Tell whether the model's thread runs."""
        alive = self._server.batcher.alive
        status = "ok" if alive else "the model's thread has ended"
        return JSONResponse({"status": status}, 200 if alive else 503)

    async def metrics(self, request: Request) -> Response:
        """Tell what was counted."""
        self._check(request)
        return PlainTextResponse(
            self._server.metrics.text(), media_type="text/plain; version=0.0.4"
        )

    async def page(self, request: Request) -> Response:
        """Send the page; it asks for the key itself."""
        return HTMLResponse(page.content(), headers=page.HEADERS)

    async def monitor(self, request: Request) -> Any:
        """Stream what is answered to others."""
        self._check(request)
        return Watching(self._server.monitor)

    def _check(self, request: Request) -> None:
        self._server.access.check_key(request.headers)

    def _model(self) -> dict[str, Any]:
        served = self._server.served
        return {
            "id": served.name,
            "object": "model",
            "created": 0,
            "owned_by": "entropix_mlx",
            "entropix": served.description() | {"monitor": self._server.monitor.enabled},
        }

    async def _answer(self, request: Request, parse: Parse) -> Answering:
        self._check(request)
        served = self._server.served
        body = Body.parse(await read_body(request, served))
        openai.check_model(body, served)
        asked = parse(body, served)
        loop = asyncio.get_running_loop()
        asking = await loop.run_in_executor(self._tokenizing, self._ask, asked)
        return Answering(asking, self._server.batcher, self._server.monitor)

    def _ask(self, asked: Asked) -> Asking:
        """Turn a request into an order's items; called on the tokenizer's thread."""
        items = to_items(asked, self._server.batcher.tokenizer)
        choices = [
            Choice(item, asked, self._prompt_text(asked, item), self._tokens) for item in items
        ]
        return Asking(asked, items, choices, Frame(asked, items, self._server.served.name))

    def _prompt_text(self, asked: Asked, item: Item) -> str:
        if not asked.echo:
            return ""
        prompt = asked.prompts[item.index // asked.n]
        if isinstance(prompt, str):
            return prompt
        return str(self._server.batcher.tokenizer.decode(list(item.prompt)))


class Watching:
    """An ASGI application that streams the monitor until its watcher leaves, or the server ends."""

    def __init__(self, monitor: Monitor) -> None:
        """Prepare."""
        self._monitor = monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything that comes."""
        watcher = self._monitor.watch()
        gone = asyncio.create_task(until_gone(receive))
        gone.add_done_callback(lambda _: self._monitor.leave(watcher))
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        try:
            while True:
                body = b": nothing yet\n\n"
                with contextlib.suppress(TimeoutError):
                    record = await asyncio.wait_for(watcher.get(), PING_SECONDS)
                    if record is None:
                        break
                    body = event_bytes(record)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()


def make_app(server: Server) -> Guard:
    """Return the ASGI application."""
    api = Api(server)
    handlers: Any = {HTTPException: _http_error, EntropixError: _refusal}
    app = Starlette(routes=api.routes(), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, server.access, server.metrics)


async def _refusal(request: Request, error: EntropixError) -> Response:
    return error_response(as_request_error(error))


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Answer about a route that there is not, or that is asked in another way."""
    where = f"{request.method[:20]} {request.url.path[:200]}"
    known = "POST /v1/chat/completions, POST /v1/completions and GET /v1/models"
    message = f"there is no {where} here: the routes are {known}"
    wrong = RequestError(message, status=error.status_code, code="unknown_url")
    wrong.headers = dict(error.headers or {})
    return error_response(wrong)


async def read_body(request: Request, served: Served) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: it is too long, or comes too slowly.
    """
    limits = served.limits
    too_long = RequestError(
        f"the body is longer than {limits.body_bytes:,} bytes",
        status=413,
        code="body_too_long",
        headers={"Connection": "close"},
    )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 15 or int(length) > limits.body_bytes:
        raise too_long
    content = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                content += piece
                if len(content) > limits.body_bytes:
                    raise too_long
    except TimeoutError:
        raise RequestError(
            "the body came too slowly",
            status=408,
            code="timeout",
            headers={"Connection": "close"},
        ) from None
    return bytes(content)
