"""The models of a server: which there are, which are in memory, and which leave for others.

A request holds its model from before its body is checked until its answer has ended. A model that
is asked for and not in memory is loaded as soon as there is room: those leave that were used
longest ago, as soon as the requests that hold them have ended. Who asks for one that is to leave
waits until it is loaded again, so that nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import EntropixError, SettingsError
from ..profiles.fields import check_text
from ..profiles.profile import resolve
from ..settings import Settings
from .batching import Batcher
from .intake import BodyReader, Intake
from .model_info import Limits, ServedModel
from .model_runner import ModelRunner
from .openai.body import Body
from .openai.errors import SERVER, RequestError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel

ANY = "any"
"""The alias that stands for every name."""
LISTED = 20
"""Names that the error of an unknown one lists."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """A model that may be asked for."""

    name: str
    load: Callable[[LanguageModel | None], tuple[LanguageModel, TokenizerWrapper]]
    """Loads it on the model's thread, given the model in memory that it shares weights with."""
    measure: Callable[[], int] = lambda: 0
    """Returns the bytes that it will take, on the model's thread."""
    prepare: Callable[[], object] = lambda: None
    """Brings its files onto this machine, on any thread."""
    identify: Callable[[], str] | None = None
    """Returns what tells its weights and caches from all others."""
    base: str | None = None
    """The model that it is an adapter of."""
    stays: bool = False
    """Whether it cannot leave memory, as where other machines hold a part of it."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, and what reads requests for it."""

    served: ServedModel
    runner: ModelRunner
    intake: Intake
    bytes: int


@dataclass(eq=False)
class Entry:
    """A model that may be asked for, and who asks."""

    source: ModelSource
    loaded: LoadedModel | None = None
    users: set[object] = field(default_factory=set)
    """Requests that hold it, and the adapters in memory that share its weights."""
    waiting: set[object] = field(default_factory=set)
    """Requests that wait for it."""
    leaving: bool = False
    used: float = 0.0
    bringing: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self.loaded is not None and not self.leaving

    def take_waiting(self) -> None:
        self.users |= self.waiting
        self.waiting.clear()
        self.used = time.monotonic()


class Models:
    """The models that a server answers with; it belongs to the event loop."""

    def __init__(
        self,
        sources: Iterable[ModelSource],
        batcher: Batcher,
        settings: Settings,
        *,
        limits: Limits | None = None,
        aliases: Mapping[str, str] | None = None,
        most_bytes: int = 2**62,
    ) -> None:
        """List the models, of which none is in memory.

        Args:
            sources: the first is that of requests which name none.
            batcher: whose thread loads them.
            settings: how they answer unless a request says otherwise.
            limits: of a request.
            aliases: other names of models.
            most_bytes: the memory of all together; one alone may take more.

        Raises:
            SettingsError: an alias is the name of another model, or is one of none.
        """
        self.limits = limits or Limits()
        self.bodies = BodyReader(self.limits)
        self.aliases = dict(aliases or {})
        self._batcher = batcher
        self._settings = settings
        self._most_bytes = most_bytes
        self._entries = {source.name: Entry(source) for source in sources}
        self._order = asyncio.Lock()
        self._left = asyncio.Event()
        for alias, name in self.aliases.items():
            if alias in self._entries or name not in self._entries:
                raise SettingsError(
                    f"{alias} cannot stand for {name}: name one of {self._names()}, by a name that"
                    " none of them has"
                )

    def find(self, name: str | None) -> Entry:
        """Return the model of a name; without one, the first.

        Raises:
            RequestError: there is none.
        """
        if name is None:
            return next(iter(self._entries.values()))
        known = self.aliases.get(name, name)
        if known not in self._entries:
            known = self.aliases.get(ANY, known)
        if known not in self._entries:
            message = f"there is no model {name[:100]!r} here: choose one of {self._names()}"
            raise RequestError(message, "model", status=404, code="model_not_found")
        return self._entries[known]

    def listed(self) -> dict[str, Entry]:
        """Return the models by all of their names."""
        named = {alias: name for alias, name in self.aliases.items() if alias != ANY}
        return self._entries | {alias: self._entries[name] for alias, name in named.items()}

    @contextlib.asynccontextmanager
    async def use(self, body: Body) -> AsyncIterator[LoadedModel]:
        """Hold the model that a request names; it is loaded first if it is not in memory.

        Raises:
            RequestError: there is none, it cannot be loaded, or the server stops.
        """
        entry, user = self.find(body.read("model", check_text)), object()
        try:
            while user not in entry.users:
                entry.waiting.add(user)
                if entry.ready:
                    entry.take_waiting()
                else:
                    await asyncio.shield(self._bring(entry))
            assert entry.loaded is not None  # which none of its users lets go
            yield entry.loaded
        finally:
            for holding in (entry.users, entry.waiting):
                holding.discard(user)
            self._left.set()

    async def unload(self, name: str | None) -> None:
        """Have a model leave memory as soon as nobody holds it."""
        entry = self.find(name)
        if entry.source.stays:
            message = f"{entry.source.name} is computed on several machines and stays in memory"
            raise RequestError(message, "model", code="unsupported")
        async with self._order:
            await self._let_go(entry)

    def load_first(self) -> None:
        """Load the first model before anything is served; errors of loading are raised here."""
        entry = next(iter(self._entries.values()))
        entry.source.prepare()
        if not entry.source.stays:  # whose ranks say so
            _log.info("loading %s …", entry.source.name)
        runner = self._batcher.load(lambda: entry.source.load(None), entry.source.identify).result()
        entry.loaded = self._loaded(entry, runner)

    def _names(self) -> str:
        names = [*self._entries, *(alias for alias in self.aliases if alias != ANY)]
        more = "" if len(names) <= LISTED else f" and {len(names) - LISTED} more"
        return ", ".join(names[:LISTED]) + more

    def _bring(self, entry: Entry) -> asyncio.Task[None]:
        """Return the task that loads a model; all who wait for it share one."""
        if entry.bringing is None or entry.bringing.done():
            entry.bringing = asyncio.create_task(self._load(entry))
            # Perhaps nobody waits for it any more; asyncio would complain then.
            entry.bringing.add_done_callback(lambda task: task.cancelled() or task.exception())
        return entry.bringing

    async def _load(self, entry: Entry) -> None:
        base = None if entry.source.base is None else self._entries[entry.source.base]
        async with self._order:
            try:
                if base is not None:
                    await self._load_alone(base, None)
                await self._load_alone(entry, base)
            except RequestError:
                raise
            except (EntropixError, MemoryError) as error:  # whose message may name a local path
                name = entry.source.name
                _log.warning("%s cannot be loaded: %s", name, error)
                message = f"{name} cannot be loaded: the server's log says why"
                raise RequestError(
                    message, "model", status=500, kind=SERVER, code="model_not_loaded"
                ) from None
            entry.take_waiting()

    async def _load_alone(self, entry: Entry, base: Entry | None) -> None:
        self._batcher.check_open()
        if entry.loaded is not None:
            entry.leaving = False
            return
        source, shared = entry.source, None
        await asyncio.to_thread(source.prepare)
        needed = await asyncio.wrap_future(self._batcher.call(source.measure))
        if base is not None and base.loaded is not None:
            base.users.add(entry)
            shared, needed = base.loaded.runner.model, 0
        try:
            await self._make_room(needed)
            _log.info("loading %s …", source.name)
            loading = self._batcher.load(lambda: source.load(shared), source.identify)
            runner = await asyncio.wrap_future(loading)
            entry.loaded = self._loaded(entry, runner, is_shared=shared is not None)
        except BaseException:
            if base is not None:
                base.users.discard(entry)
            raise

    def _loaded(self, entry: Entry, runner: ModelRunner, is_shared: bool = False) -> LoadedModel:
        config = runner.model.config
        settings = replace(self._settings, profile=resolve(self._settings.profile, config))
        served = ServedModel(entry.source.name, config, settings, self.limits)
        entry.used = time.monotonic()
        intake = Intake(served, runner.tokenizer, self.bodies)
        return LoadedModel(served, runner, intake, 0 if is_shared else runner.bytes)

    async def _make_room(self, needed: int) -> None:
        while True:
            held = [entry for entry in self._entries.values() if entry.loaded is not None]
            taken = sum(entry.loaded.bytes for entry in held if entry.loaded is not None)
            if not held or taken + needed <= self._most_bytes:
                return
            # A base that adapters share leaves after them.
            free = [entry for entry in held if not any(isinstance(u, Entry) for u in entry.users)]
            if not free:
                return
            await self._let_go(min(free, key=lambda entry: entry.used))

    async def _let_go(self, entry: Entry) -> None:
        if entry.loaded is None:
            return
        entry.leaving = True
        try:
            for user in list(entry.users):
                if isinstance(user, Entry):
                    await self._let_go(user)
            while entry.users:
                self._left.clear()
                await self._left.wait()
            _log.info("%s leaves memory", entry.source.name)
            loaded, entry.loaded = entry.loaded, None
            await asyncio.wrap_future(self._batcher.unload(loaded.runner))
        finally:
            entry.leaving = False
        if entry.source.base is not None:
            self._entries[entry.source.base].users.discard(entry)


def describe(entry: Entry, name: str) -> dict[str, Any]:
    """Return what the list of models says about one under one of its names."""
    source, loaded = entry.source, entry.loaded
    described: dict[str, Any] = {"loaded": loaded is not None}
    found: dict[str, Any] = {"root": source.name, "parent": source.base}
    if loaded is not None:
        described |= loaded.served.description()
        found["max_model_len"] = loaded.served.config.max_position_embeddings
    return {"id": name, "object": "model", "owned_by": "entropix_mlx", **found} | {
        "entropix": described
    }
