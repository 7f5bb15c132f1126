"""The model that a server holds, and those on this machine that may take its place.

A request that names another one waits until the answers of the model in memory have ended; then the
other is loaded in its place. Requests are served in the order in which they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import EntropixError
from ..profiles.profile import resolve
from ..settings import Settings
from .engine import ServingEngine
from .model_info import Limits, ServedModel
from .openai.errors import SERVER, RequestError
from .prompts import PromptMaker

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel

LISTED = 20
"""Names that the error of an unknown one lists."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """A model that may be asked for."""

    name: str
    load: Callable[[], tuple[LanguageModel, TokenizerWrapper]]
    """Loads it, on the model's thread."""


@dataclass(frozen=True)
class LoadedModel:
    """The model in memory, and what makes requests prompts for it."""

    served: ServedModel
    prompts: PromptMaker
    tokenizer: TokenizerWrapper


class Models:
    """The models that a server answers with, of which one is in memory."""

    def __init__(
        self,
        sources: Iterable[ModelSource],
        engine: ServingEngine,
        settings: Settings,
        limits: Limits | None = None,
    ) -> None:
        """List the models; the first is that of requests which name none while none is loaded."""
        self.limits = limits or Limits()
        self.loaded: LoadedModel | None = None
        self._engine = engine
        self._settings = settings
        self._sources = {source.name: source for source in sources}
        self._turn = asyncio.Lock()
        self._users = 0
        self._free = asyncio.Event()

    def find(self, name: str | None) -> ModelSource:
        """Return the model of a name; without one, that in memory.

        Raises:
            RequestError: there is none.
        """
        if name is None:
            name = self.loaded.served.name if self.loaded else next(iter(self._sources))
        if name not in self._sources:
            names = [*self._sources]
            more = "" if len(names) <= LISTED else f" and {len(names) - LISTED} more"
            known = ", ".join(names[:LISTED]) + more
            message = f"there is no model {name[:100]!r} here: choose one of {known}"
            raise RequestError(message, "model", status=404, code="model_not_found")
        return self._sources[name]

    def load_first(self) -> None:
        """Load the first model before anything is served; errors of loading are raised here."""
        source = self.find(None)
        self.loaded = self._described(source, *self._engine.load(source.load).result())

    @contextlib.asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[LoadedModel]:
        """Hold the model of a name; without one, that in memory.

        Raises:
            RequestError: there is none, it cannot be loaded, or the server stops.
        """
        async with self._turn:  # also of who waits for another model: nobody overtakes
            source = self.find(name)
            if self.loaded is None or source.name != self.loaded.served.name:
                while self._users:
                    self._free.clear()
                    await self._free.wait()
                await self._swap(source)
            loaded = self.loaded
            assert loaded is not None
            self._users += 1
        try:
            yield loaded
        finally:
            self._users -= 1
            self._free.set()

    async def _swap(self, source: ModelSource) -> None:
        _log.info("loading %s …", source.name)
        self.loaded = None
        loading = asyncio.ensure_future(asyncio.wrap_future(self._engine.load(source.load)))
        try:
            self.loaded = self._described(source, *await asyncio.shield(loading))
        except asyncio.CancelledError:
            await asyncio.wait([loading])  # whoever is next must not load beside it
            raise
        except (EntropixError, MemoryError, OSError) as error:  # whose message may name a path
            if isinstance(error, RequestError):
                raise
            _log.warning("%s cannot be loaded: %s", source.name, error)
            message = f"{source.name} cannot be loaded: the server's log says why"
            raise RequestError(
                message, "model", status=500, kind=SERVER, code="model_not_loaded"
            ) from None

    def _described(
        self, source: ModelSource, model: LanguageModel, tokenizer: TokenizerWrapper
    ) -> LoadedModel:
        profile = resolve(self._settings.profile, model.config)
        settings = replace(self._settings, profile=profile)
        served = ServedModel(source.name, model.config, settings, self.limits)
        return LoadedModel(served, PromptMaker(served, tokenizer), tokenizer)

    def describe(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return what the list of models says, about all of them or about one.

        Raises:
            RequestError: there is none of that name.
        """
        sources = self._sources.values() if name is None else [self.find(name)]
        return [self._card(source.name) for source in sources]

    def _card(self, name: str) -> dict[str, Any]:
        card: dict[str, Any] = {"id": name, "object": "model", "owned_by": "entropix_mlx"}
        if self.loaded is None or self.loaded.served.name != name:
            return card | {"entropix": {"loaded": False}}
        served = self.loaded.served
        card["max_model_len"] = served.config.max_position_embeddings
        return card | {"entropix": {"loaded": True} | served.description()}
