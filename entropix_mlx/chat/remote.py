"""A model behind `entropix serve` as the source of a conversation."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx

from .. import limits
from ..answer.selection import AnswersStanding
from ..constraints.constraint import Constraint
from ..errors import EntropixError, SessionError
from ..profiles.fields import spell_infinities
from ..profiles.profile import Profile, differences
from ..settings import described
from ..step import Step
from .session import AnswerSource, Asked, profile_of

if TYPE_CHECKING:
    from ..checkpoints.local import LocalModel

TIMEOUT = httpx.Timeout(600.0, connect=10.0)
"""Seconds. A long prompt may take minutes before its first token."""
CANCEL_SECONDS = 0.1  # the interval at which the cancel event is checked
MOST_ALTERNATIVES = 20
NO_MODELS = "the model is the server's: leave --server out to choose one here"


class ServerError(EntropixError):
    """The server cannot be reached, or refuses a request."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class RemoteSource(AnswerSource):
    """A model behind a server; see `AnswerSource`."""

    refusals: Mapping[str, str] = {
        "ask": "a server does not ask at forks: leave --ask or --server out"
    }

    def __init__(self, url: str, key: str | None = None) -> None:
        """Prepare a source; nothing is sent before `open`.

        Args:
            url: of the server; it may end with /v1, as for other clients.
            key: of the server's access, if it needs one.
        """
        self.model = url
        self._base = url.rstrip("/").removesuffix("/v1")
        headers = {b"Content-Type": b"application/json"}
        if key is not None:
            headers[b"Authorization"] = f"Bearer {key}".encode()
        self._client = httpx.Client(
            headers=headers,
            timeout=TIMEOUT,
            limits=httpx.Limits(max_keepalive_connections=0),  # `_Cut` sees new connections only
            trust_env=False,
            verify=ssl.create_default_context(),
        )

    def open(self, model: str | None = None) -> None:
        if model is not None:
            raise SessionError(NO_MODELS)
        try:
            with self._request("GET", "/v1/models") as response:
                models = json.loads(_whole(response))["data"]
            cards = [model["entropix"] for model in models]
            card = next((card for card in cards if card["loaded"]), None)
            if card is None:
                raise ServerError(f"{self.model} has loaded no model: ask it something first")
            self.context_length = int(card["context_length"])
            self._profile = Profile.load().replace(card["profile"], self.model)
            self.fingerprint = str(card["fingerprint"])
        except (ValueError, LookupError, TypeError) as error:
            raise ServerError(f"{self.model} is no entropix server: {error!r}") from error

    def models(self) -> Sequence[LocalModel]:
        raise SessionError(NO_MODELS)

    @property
    def auto_profile(self) -> Profile:
        return self._profile

    def answer(self, asked: Asked) -> Generator[Step, None, None]:
        """See `AnswerSource.answer`; the oldest turns that the context cannot hold are left out."""
        conversation, cancel = asked.conversation, asked.hooks.cancel
        last = len(conversation.turns) - 1
        opened = contextlib.ExitStack()
        while not asked.hooks.cancelled():
            body = json.dumps(self._body(asked))
            request = self._request("POST", "/v1/chat/completions", body, cancel)
            try:
                steps = _steps(opened.enter_context(request), opened, asked)
                weakref.finalize(steps, opened.close)  # also where nobody begins to read
                return steps
            except ServerError as error:
                if asked.hooks.cancelled():
                    break
                if error.code != "context_length_exceeded" or conversation.dropped >= last:
                    raise
                conversation.dropped += (last - conversation.dropped + 1) // 2
        return _no_steps()

    def _body(self, asked: Asked) -> dict[str, Any]:
        settings = asked.settings
        alternatives = min(settings.top_logprobs, MOST_ALTERNATIVES)
        stated = {name: getattr(settings, name) for name, o in described().items() if o.served}
        changed = differences(self._profile, profile_of(settings, self))
        body = {
            "messages": asked.conversation.prompt_messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logprobs": alternatives > 0,
            "top_logprobs": alternatives,
            "set": spell_infinities({name: value for name, (_, value) in changed.items()}),
            **{name: _sent(value) for name, value in stated.items() if value is not None},
            "seed": asked.reply.seed,
        }
        if asked.forced:
            body["answers"] = 1
            body["prefix"] = [step.token for step in asked.reply.steps]
            body["forced"] = list(asked.forced)
        return body

    @contextlib.contextmanager
    def _request(
        self,
        method: str,
        route: str,
        body: str | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[httpx.Response]:
        """Send a request, and yield the response once it begins; a cancel cuts it off. Raises
        `ServerError` if the server cannot be reached, or refuses the request."""
        with self._explained(), _Cut(cancel) as cut:
            url, extensions = self._base + route, {"trace": cut.trace}
            with self._client.stream(method, url, content=body, extensions=extensions) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response)
                yield response

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            message = f"{self.model!r} is no address of a server: write http://127.0.0.1:8080"
            raise ServerError(message) from error
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            why = str(error) or type(error).__name__
            raise ServerError(f"no answer from the server at {self.model}: {why}") from error


class _Cut:
    """Shuts the connection of a request down once an event is set, even where nothing arrives."""

    def __init__(self, cancel: threading.Event | None) -> None:
        self._cancel = cancel
        self._ended = threading.Event()
        self._sockets: list[socket.socket] = []

    def trace(self, event: str, about: Mapping[str, Any]) -> None:
        """Take the socket; an extension of httpx."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._sockets.append(about["return_value"].get_extra_info("socket"))

    def __enter__(self) -> _Cut:
        if self._cancel is not None:
            threading.Thread(target=self._watch, args=(self._cancel,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self, cancel: threading.Event) -> None:
        while not self._ended.wait(CANCEL_SECONDS):
            if cancel.is_set():
                for connected in self._sockets:
                    with contextlib.suppress(OSError):
                        connected.shutdown(socket.SHUT_RDWR)


def _no_steps() -> Generator[Step, None, None]:
    yield from ()


def _steps(
    response: httpx.Response, opened: contextlib.ExitStack, asked: Asked
) -> Generator[Step, None, None]:
    kept = len(asked.reply.steps)
    try:
        with opened:
            for line in _lines(response):
                step = _read(line, asked) if line.startswith(b"data: {") else None
                if step is not None:
                    yield replace(step, index=step.index + kept)
    except ServerError:
        if not asked.hooks.cancelled():
            raise


def _read(line: bytes, asked: Asked) -> Step | None:
    """Return the step of an event, if it has one, and take over what else it says."""
    try:
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            raise ServerError(str(event["error"]["message"]))
        if usage := event.get("usage"):
            asked.reply.prompt_tokens = int(usage["total_tokens"]) - len(asked.reply.steps)
        record = event["choices"][0].get("entropix", {}) if event["choices"] else {}
        if asked.on_answers is not None and "answers" in record:
            asked.on_answers(AnswersStanding.of(record["answers"]))
        return Step.from_dict(record) if "token" in record else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ServerError(f"the server sent no valid answer: {error!r}") from error


def _sent(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Constraint) else value


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Yield the lines of a response as they come. Raises `ServerError` if a line is longer than any
    that a server sends."""
    line = bytearray()
    for chunk in response.iter_bytes():
        begun, *others = chunk.split(b"\n")
        line += begun
        for other in others:
            yield bytes(line)
            line = bytearray(other)
        if len(line) > limits.LINE_BYTES:
            raise ServerError("the server sent a line that is too long")
    yield bytes(line)


def _whole(response: httpx.Response) -> bytes:
    return b"\n".join(_lines(response))


def _refusal(response: httpx.Response) -> ServerError:
    try:
        error = json.loads(_whole(response))["error"]
        return ServerError(f"the server refuses: {error['message']}", error["code"])
    except (ValueError, KeyError, TypeError):
        message = f"the server answers with status {response.status_code}: is it entropix?"
        return ServerError(message)
