"""A model behind `entropix serve`, as a backend: HTTP with the standard library alone."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .. import limits
from ..answer.selection import AnswersStanding
from ..constraints.constraint import Constraint
from ..errors import EntropixError, SessionError
from ..profiles.fields import spell_infinities
from ..profiles.profile import AUTO, Profile, differences
from ..samplers.registry import find_sampler
from ..settings import Settings, described
from ..step import Step
from .conversation import Conversation, Reply
from .events import CancelToken
from .session import ChatSession

if TYPE_CHECKING:
    from ..checkpoints.local import LocalModel

KEY_VARIABLE = "ENTROPIX_API_KEY"
"""The variable of the environment that holds the key, on both sides."""
CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0
"""How long an answer may take to begin, or between two tokens: its prompt may be long."""
CANCEL_SECONDS = 0.1
"""The interval at which the cancel token is checked."""
REFUSAL_BYTES = 2**16
KINDS: Mapping[str, type[http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}
MOST_ALTERNATIVES = 20

NO_ASKING = "a server does not ask at forks: leave --ask or --server out"
NO_MODELS = "the model is the server's: leave --server out to choose one here"


class ServerError(EntropixError):
    """The server cannot be reached, or refuses a request."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class RemoteBackend:
    """A model behind a server; see `Backend`."""

    address: Address
    settings: Settings
    system_prompt: str | None = None
    ask: bool = False
    model: str = field(init=False)
    refusals: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.address.url
        self.refusals = {"ask": NO_ASKING}

    def open(self, model: str | None = None) -> RemoteSession:
        if model is not None:
            raise SessionError(NO_MODELS)
        find_sampler(self.settings.sampler)
        return RemoteSession(self.address, self.settings, self.system_prompt)

    def models(self) -> Sequence[LocalModel]:
        raise SessionError(NO_MODELS)


class RemoteSession(ChatSession):
    """A conversation with a model behind a server."""

    def __init__(
        self, address: Address, settings: Settings, system_prompt: str | None = None
    ) -> None:
        super().__init__(settings, system_prompt)
        self._address = address
        self._context_used = 0
        try:
            cards = [model["entropix"] for model in address.get("/v1/models")["data"]]
            described = next((card for card in cards if card["loaded"]), None)
            if described is None:
                raise ServerError(f"{address.url} has loaded no model: ask it something first")
            self.context_length = int(described["context_length"])
            self._served_profile = Profile.load().replace(described["profile"], address.url)
            self.fingerprint = str(described["fingerprint"])
        except (ValueError, LookupError, TypeError) as error:
            raise ServerError(f"{address.url} is no entropix server: {error!r}") from error

    @property
    def context_used(self) -> int:
        return self._context_used if self.conversation.turns else 0

    @property
    def profile(self) -> Profile:
        """The profile that the settings mean; ``"auto"`` is the server's."""
        named = self.settings.profile
        profile = self._served_profile if named == AUTO else Profile.load(named)
        return profile.replace(self.settings.changes)

    def begin(
        self, conversation: Conversation, reply: Reply, forced: Sequence[int], cancel: CancelToken
    ) -> Generator[Step, None, None]:
        """See `ChatSession.begin`; the oldest turns that the context cannot hold are left out."""
        last = len(conversation.turns) - 1
        response = None
        while response is None and not cancel.is_set():
            body = self._body(conversation, reply, forced)
            try:
                response = self._address.post("/v1/chat/completions", body, cancel)
            except ServerError as error:
                if cancel.is_set():
                    break
                if error.code != "context_length_exceeded" or conversation.dropped >= last:
                    raise
                conversation.dropped += (last - conversation.dropped + 1) // 2
        return self._steps(response, len(reply.steps), cancel)

    def _body(
        self, conversation: Conversation, reply: Reply, forced: Sequence[int]
    ) -> dict[str, Any]:
        settings = self.settings
        alternatives = min(settings.top_logprobs, MOST_ALTERNATIVES)
        given = {name: getattr(settings, name) for name, o in described().items() if o.served}
        changed = differences(self._served_profile, self.profile)
        return {
            "messages": conversation.prompt_messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logprobs": alternatives > 0,
            "top_logprobs": alternatives,
            "set": spell_infinities({name: value for name, (_, value) in changed.items()}),
            **{name: _sent(value) for name, value in given.items() if value is not None},
            "seed": reply.seed,
            **_continued(reply, forced, settings),
        }

    def _steps(
        self, response: HttpResponse | None, before: int, cancel: CancelToken
    ) -> Generator[Step, None, None]:
        if response is None:
            return
        try:
            with contextlib.closing(response):
                for event in response.events():
                    if step := self._read(event):
                        yield replace(step, index=step.index + before)
        except ServerError:
            if not cancel.is_set():
                raise

    def _read(self, event: dict[str, Any]) -> Step | None:
        try:
            if "error" in event:
                raise ServerError(str(event["error"]["message"]))
            if usage := event.get("usage"):
                self._context_used = int(usage["total_tokens"])
            record = event["choices"][0].get("entropix", {}) if event["choices"] else {}
            if self.on_answers is not None and "answers" in record:
                self.on_answers(AnswersStanding.of(record["answers"]))
            return Step.from_dict(record) if "token" in record else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServerError(f"the server sent no valid answer: {error!r}") from error


def _continued(reply: Reply, forced: Sequence[int], settings: Settings) -> dict[str, Any]:
    """Return the fields that continue an answer, or draw several ones."""
    if not forced:
        return {"answers": settings.answers}
    return {"answers": 1, "prefix": [step.token for step in reply.steps], "forced": list(forced)}


def _sent(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Constraint) else value


@dataclass(frozen=True)
class Address:
    """Where a server is, and its key."""

    url: str
    key: str | None = None

    def get(self, path: str) -> Any:
        with contextlib.closing(HttpResponse(self, "GET", path, None, CancelToken())) as response:
            return response.whole()

    def post(self, path: str, body: Any, cancel: CancelToken) -> HttpResponse:
        """Send JSON, and return the response once it begins."""
        return HttpResponse(self, "POST", path, json.dumps(body).encode(), cancel)

    def connection(self) -> http.client.HTTPConnection:
        try:
            parts = urlsplit(self.url)
            kind = KINDS[parts.scheme]
            if not parts.hostname:
                raise ValueError
            return kind(parts.hostname, parts.port, timeout=CONNECT_SECONDS)
        except (ValueError, KeyError):
            message = f"{self.url!r} is no address of a server: write http://127.0.0.1:8080"
            raise ServerError(message) from None

    def path(self, route: str) -> str:
        """Return the path of a route; the address may end with /v1, as for other clients."""
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1") + route


class HttpResponse:
    """The response to one request, which a cancel token cuts off however long nothing comes."""

    def __init__(
        self, address: Address, method: str, route: str, content: bytes | None, cancel: CancelToken
    ) -> None:
        self._address = address
        self._cancel = cancel
        self._closed = threading.Event()
        self._open = contextlib.ExitStack()
        headers = {"Content-Type": b"application/json"}
        if address.key is not None:
            headers["Authorization"] = f"Bearer {address.key}".encode()
        with self._explained():
            connection = address.connection()
            self._open.callback(connection.close)
            connection.connect()
            self._watch(connection.sock)
            connection.request(method, address.path(route), content, headers)
            connection.sock.settimeout(READ_SECONDS)
            self._response = connection.getresponse()
            self._open.callback(self._response.close)
            if self._response.status != http.client.OK:
                raise _refusal(self._response)

    def whole(self) -> Any:
        with self._explained():
            return json.loads(self._response.read(limits.LINE_BYTES))

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the server-sent events, until they end or the request is cancelled."""
        while not self._cancel.is_set():
            with self._explained():
                line = self._response.readline(limits.LINE_BYTES)
                begins = line.startswith(b"data: {")
                event = json.loads(line.removeprefix(b"data: ")) if begins else None
            if not line or line.startswith(b"data: [DONE]"):
                return
            if event is not None:
                yield event

    def close(self) -> None:
        self._closed.set()
        self._open.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ServerError:
            self.close()
            raise
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            message = f"no answer from the server at {self._address.url}: {reason}"
            raise ServerError(message) from error

    def _watch(self, connected: socket.socket) -> None:
        def cut() -> None:
            while not self._closed.wait(CANCEL_SECONDS):
                if self._cancel.is_set():
                    with contextlib.suppress(OSError):
                        connected.shutdown(socket.SHUT_RDWR)
                    return

        threading.Thread(target=cut, name="cancel", daemon=True).start()


def _refusal(response: http.client.HTTPResponse) -> ServerError:
    try:
        error = json.loads(response.read(REFUSAL_BYTES))["error"]
        return ServerError(f"the server refuses: {error['message']}", error["code"])
    except (ValueError, KeyError, TypeError):
        return ServerError(f"the server answers with status {response.status}: is it entropix?")
