"""From the body of a request to the tokens of its prompts: bounded, and the smallest first.

What takes time is done on a thread of its own, in pieces. Between two pieces the smallest request
comes first, so that nobody waits for the megabytes of somebody else, and a request whose client has
gone is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import itertools
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from ..answer.promise import Promise, unsure_rule
from ..errors import ConfigurationError, ContextLengthError
from ..profiles.profile import Profile
from ..profiles.sections import Abstain
from ..settings import SEED_BITS
from ..tools.formats import CallFormat
from .compiling import Compiler
from .model_info import Limits, ServedModel
from .openai.body import Body
from .openai.errors import RequestError, busy_error
from .openai.parse import CompletionRequest, Message, Prompt
from .openai.responses import Choice, TokenText

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_log = logging.getLogger(__name__)

PIECE = 2**13
"""Characters of a text that are tokenized at once: about a hundredth of a second."""
CUT = 16
"""Tokens that a piece may have more than its part of the whole text has."""
SMALL_BODY = 2**16
"""Bytes up to which a body is parsed at once."""
MOST_REST = 3
"""Times its own duration that a piece of a large request is followed by none."""

Parse = Callable[[Body, ServedModel], CompletionRequest]
T = TypeVar("T")
Work = Generator[None, None, T]
"""What is done piece by piece: it yields after each but the last, and returns what was found."""


class BodyReader:
    """Reads the bodies of requests, whatever model they are for; it belongs to the event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # One thread: tokenizers are not made to be used by several at once.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        # Another one: a stranger's constraint takes seconds, while nobody's tokens wait for it.
        self.compiling = ThreadPoolExecutor(1, thread_name_prefix="compiler")
        self._turns, self._large_turns = Turns(), Turns()
        self._large = 0

    async def read(self, request: Request, held: contextlib.AsyncExitStack) -> bytearray:
        """Return a request's body; `held` gets the place of a large one among those there may be.

        Raises:
            RequestError: the body is too long, comes too slowly, or has no place.
            ClientDisconnect: the client has gone.
        """
        limits = self._limits
        close = {"Connection": "close"}
        message = f"the body is longer than {limits.body_bytes:,} bytes"
        too_long = RequestError(message, status=413, code="body_too_long", headers=close)
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > limits.body_bytes:
            raise too_long
        content, is_large = bytearray(), False
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for piece in request.stream():
                    content += piece
                    if len(content) > limits.body_bytes:
                        raise too_long
                    if len(content) > SMALL_BODY and not is_large:
                        is_large = True
                        held.enter_context(self._place())
        except TimeoutError:
            message = "the body came too slowly"
            raise RequestError(message, status=408, code="timeout", headers=close) from None
        return content

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if self._large >= self._limits.large_bodies:
            raise busy_error("too many large requests come at once", {"Connection": "close"})
        self._large += 1
        try:
            yield
        finally:
            self._large -= 1

    async def parse(self, size: int, parse: Callable[[], T]) -> T:
        """Return what a function makes of a body of so many bytes, on a thread if they are many.

        Raises:
            RequestError, ContextLengthError: as the function does, and where it nests too deeply.
        """
        if size <= SMALL_BODY:
            return _not_too_deep(parse)
        async with self._large_turns.of(size):
            began = time.perf_counter()
            try:
                return await asyncio.to_thread(_not_too_deep, parse)
            finally:
                await self._rest(began)

    async def do(self, size: int, work: Work[T]) -> T:
        while True:
            found = await self._piece(size, work)
            if found:
                return found[0]

    async def _piece(self, size: int, work: Work[T]) -> tuple[T] | None:
        loop = asyncio.get_running_loop()
        if size <= SMALL_BODY:
            async with self._turns.of(size):
                return await loop.run_in_executor(self._thread, _next, work)
        async with self._large_turns.of(size):
            async with self._turns.of(size):
                began = time.perf_counter()
                found = await loop.run_in_executor(self._thread, _next, work)
            await self._rest(began)
            return found

    async def _rest(self, began: float) -> None:
        """Leave Python, which runs one thread at a time, to others where large requests abound."""
        await asyncio.sleep(min(self._large - 1, MOST_REST) * (time.perf_counter() - began))


class Intake:
    """Makes bodies requests to one model, and tokenizes their prompts."""

    def __init__(
        self, served: ServedModel, tokenizer: TokenizerWrapper, bodies: BodyReader
    ) -> None:
        self._served = served
        self._tokenizer = tokenizer
        self._bodies = bodies
        self._tokens = TokenText(tokenizer)
        self._compiler = Compiler(
            tokenizer, served.config.vocab_size, served.limits.constraint_characters
        )
        self._context = served.config.max_position_embeddings
        self._most_bytes = self._context * max(len(t.encode()) for t in tokenizer.get_vocab())

    async def parse(self, body: Body, size: int, parse: Parse) -> CompletionRequest:
        """Return the request that a body holds.

        Raises:
            RequestError, ContextLengthError: it is none, or its prompts are too long.
        """
        return await self._bodies.parse(size, functools.partial(self._parse, body, parse))

    async def tokenize(self, request: CompletionRequest, size: int) -> list[Choice]:
        """Return a choice for each answer of a request, whose body had so many bytes.

        Raises:
            PromptError, ContextLengthError: there is no such prompt, or it is too long.
        """
        form = None
        if self._compiler.concerns(request):
            prepare = functools.partial(self._compiler.prepare, request)
            loop = asyncio.get_running_loop()
            request, form = await loop.run_in_executor(self._bodies.compiling, prepare)
        return await self._bodies.do(size, self._choices(request, form))

    def _parse(self, body: Body, parse: Parse) -> CompletionRequest:
        request = parse(body, self._served)
        for part in (*request.prompts, request.prefix, request.forced):
            text = _text(part)
            if len(part) > self._context if text is None else len(text.encode()) > self._most_bytes:
                raise self._too_long()
        return request

    def _choices(self, request: CompletionRequest, form: CallFormat | None) -> Work[list[Choice]]:
        listed = request.tools.listed if request.tools else ()
        variables = request.variables
        yield from self._count(json.dumps([listed, variables]))
        seed = request.settings.seed
        first = secrets.randbits(SEED_BITS) if seed is None else seed
        prefix = request.prefix
        if isinstance(prefix, str):
            yield from self._count(prefix)
            prefix = tuple(self._tokenizer.encode(prefix, add_special_tokens=False))
        rule = self._unsure_rule(request)
        choices: list[Choice] = []
        for prompt in request.prompts:
            yield from self._count(_text(prompt) or "")
            tokens = (*_tokens(prompt, self._tokenizer, listed, variables), *prefix)
            echoed = ""
            if request.echo:
                echoed = prompt if isinstance(prompt, str) else self._tokenizer.decode([*tokens])
            for sample in range(request.n):
                settings = replace(request.settings, seed=first + sample)
                index = len(choices)
                choice = Choice(index, tokens, settings, request, self._tokens, rule, echoed)
                choice.message = self._compiler.message(request, form, tokens)
                choices.append(choice)
            yield
        return choices

    def _unsure_rule(self, request: CompletionRequest) -> Promise | Abstain:
        rule = Profile.load(request.settings.profile).abstain
        try:
            return unsure_rule(self._served.name, rule)
        except ConfigurationError as error:  # of the server's own file: no client can mend it
            _log.warning("%s", error)
            return rule

    def _count(self, text: str) -> Work[None]:
        """Refuse a text that has far more tokens than the context, before all are known."""
        count = 0
        for start in range(0, len(text) if len(text) > PIECE else 0, PIECE):
            piece = text[start : start + PIECE]
            count += len(self._tokenizer.encode(piece, add_special_tokens=False)) - CUT
            if count > self._context:
                raise self._too_long()
            yield

    def _too_long(self) -> ContextLengthError:
        return ContextLengthError(
            f"the prompt is longer than the model's context, which holds {self._context} tokens:"
            " shorten the prompt"
        )


class Turns:
    """A lock that goes to the smallest of those who wait for it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._taken = False

    @contextlib.asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        if self._taken:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (size, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._pass_on()
                raise
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


def _not_too_deep(parse: Callable[[], T]) -> T:
    try:
        return parse()
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None


def _next(work: Work[T]) -> tuple[T] | None:
    """Do the next piece; return what was found, if it was the last."""
    try:
        next(work)
    except StopIteration as end:
        return (end.value,)
    return None


def _text(prompt: Prompt) -> str | None:
    """Return what there is to tokenize of a prompt; None if it comes in tokens."""
    if isinstance(prompt, str):
        return prompt
    messages = [message for message in prompt if isinstance(message, dict)]
    texts = (part for message in messages for part in _parts(message))
    return "\n".join(texts) if messages else None


def _parts(message: Message) -> Iterator[str]:
    yield message["content"]
    yield message.get("reasoning_content", "")
    yield json.dumps(message["tool_calls"]) if "tool_calls" in message else ""


def _tokens(
    prompt: Prompt,
    tokenizer: TokenizerWrapper,
    tools: Sequence[dict[str, Any]],
    variables: Mapping[str, Any],
) -> Sequence[int]:
    from ..api.prompts import conversation_prompt, text_prompt

    if isinstance(prompt, str):
        return text_prompt(tokenizer, prompt)
    messages = [message for message in prompt if isinstance(message, dict)]
    if messages:
        return conversation_prompt(tokenizer, messages, tools, variables)
    return [token for token in prompt if isinstance(token, int)]
