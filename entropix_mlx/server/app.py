"""The HTTP interface: routes and errors in OpenAI's shape, and a page of its own at /."""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..errors import EntropixError
from ..palette import LOOKS
from ..settings import SEED_BITS
from .batching import Batcher
from .metrics import ServerMetrics
from .middleware import Access, Guard, error_response
from .model_info import ServedModel
from .openai import parse as openai
from .openai.body import Body
from .openai.errors import RequestError, as_request_error
from .openai.parse import CompletionRequest, Prompt
from .openai.responses import Choice, CompletionResponse, TokenText
from .streaming import STREAM, Monitor, Responder

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Parse = Callable[[Body, ServedModel], CompletionRequest]
PROMETHEUS = "text/plain; version=0.0.4"
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline';"
    " script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""The page may talk to its own server and to nobody else."""


@dataclass(frozen=True)
class Server:
    """Everything that the routes need."""

    served: ServedModel
    batcher: Batcher
    metrics: ServerMetrics
    access: Access
    monitor: Monitor


class Api:
    """The routes of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tokens = TokenText(server.batcher.tokenizer)
        # One thread: tokenizers are not made to be used by several at once.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    def routes(self) -> list[Route]:
        routes = [
            self._completions("/v1/chat/completions", openai.parse_chat),
            self._completions("/v1/completions", openai.parse_completion),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/", self.page),
        ]
        if self._server.monitor.enabled:
            routes.append(Route("/v1/monitor", self.monitor))
        return routes

    def _completions(self, path: str, parse: Parse) -> Route:
        return Route(path, functools.partial(self._answer, parse=parse), methods=["POST"])

    async def models(self, request: Request) -> Response:
        self._check(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._check(request)
        openai.check_model(Body({"model": request.path_params["name"]}), self._server.served)
        return JSONResponse(self._model())

    async def health(self, request: Request) -> Response:
        alive = self._server.batcher.alive
        status = "ok" if alive else "the model's thread has ended"
        return JSONResponse({"status": status}, 200 if alive else 503)

    async def metrics(self, request: Request) -> Response:
        self._check(request)
        return Response(self._server.metrics.text(), media_type=PROMETHEUS)

    async def page(self, request: Request) -> Response:
        return HTMLResponse(page(), headers=PAGE_HEADERS)

    async def monitor(self, request: Request) -> Response:
        self._check(request)
        return StreamingResponse(self._server.monitor.records(), headers=STREAM)

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

    async def _answer(self, request: Request, parse: Parse) -> Any:
        self._check(request)
        served = self._server.served
        body = Body.parse(await read_body(request, served))
        openai.check_model(body, served)
        parsed = parse(body, served)
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._tokenizing, self._begin, parsed)
        return Responder(response, self._server.batcher, self._server.monitor)

    def _begin(self, request: CompletionRequest) -> CompletionResponse:
        """Return the response to a request, without answers yet; on the tokenizer's thread."""
        tokenizer, seed = self._server.batcher.tokenizer, request.settings.seed
        first = secrets.randbits(SEED_BITS) if seed is None else seed
        prefix = request.prefix
        if isinstance(prefix, str):
            prefix = tuple(tokenizer.encode(prefix, add_special_tokens=False))
        choices: list[Choice] = []
        for prompt in request.prompts:
            tokens = (*_tokens(prompt, tokenizer), *prefix)
            echoed = ""
            if request.echo:
                echoed = prompt if isinstance(prompt, str) else tokenizer.decode(list(prompt))
            for sample in range(request.n):
                settings = replace(request.settings, seed=first + sample)
                index = len(choices)
                choices.append(Choice(index, tokens, settings, request, self._tokens, echoed))
        return CompletionResponse(request, choices, self._server.served.name)


def make_app(server: Server) -> Guard:
    api = Api(server)
    handlers: Any = {HTTPException: _http_error, EntropixError: _refusal}
    app = Starlette(routes=api.routes(), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, server.access, server.metrics)


async def _refusal(request: Request, error: EntropixError) -> Response:
    return error_response(as_request_error(error))


async def _http_error(request: Request, error: HTTPException) -> Response:
    where = f"{request.method[:20]} {request.url.path[:200]}"
    known = "POST /v1/chat/completions, POST /v1/completions and GET /v1/models"
    message = f"there is no {where} here: the routes are {known}"
    wrong = RequestError(message, status=error.status_code, code="unknown_url")
    wrong.headers = dict(error.headers or {})
    return error_response(wrong)


async def read_body(request: Request, served: ServedModel) -> bytes:
    """Return the body of a request, unless it is too long or comes too slowly."""
    limits = served.limits
    close = {"Connection": "close"}
    message = f"the body is longer than {limits.body_bytes:,} bytes"
    too_long = RequestError(message, status=413, code="body_too_long", headers=close)
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
        message = "the body came too slowly"
        raise RequestError(message, status=408, code="timeout", headers=close) from None
    return bytes(content)


@functools.cache
def page() -> str:
    text = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    looks = {name: (look.glyph, f"rgb{look.rgb}") for name, look in LOOKS.items()}
    return text.replace("$looks", json.dumps(looks))


def _tokens(prompt: Prompt, tokenizer: TokenizerWrapper) -> Sequence[int]:
    from ..api.prompts import conversation_prompt, text_prompt

    if isinstance(prompt, str):
        return text_prompt(tokenizer, prompt)
    messages = [message for message in prompt if isinstance(message, dict)]
    if messages:
        return conversation_prompt(tokenizer, messages)
    return [token for token in prompt if isinstance(token, int)]
