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
from .openai.errors import RequestError
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
        """List the models and load the first; errors of loading are raised here."""
        self.limits = limits or Limits()
        self._engine = engine
        self._settings = settings
        self._sources = {source.name: source for source in sources}
        self._turn = asyncio.Lock()
        self._users = 0
        self._free = asyncio.Event()
        first = next(iter(self._sources.values()))
        self.loaded: LoadedModel | None = self._described(first, *engine.load(first.load).result())

    def find(self, name: str | None) -> ModelSource:
        """Return the model of a name; without one, that in memory.

        Raises:
            RequestError: there is none.
        """
        names = [*self._sources]
        if name is None:
            name = self.loaded.served.name if self.loaded else names[0]
        if name not in names:
            more = "" if len(names) <= LISTED else f" and {len(names) - LISTED} more"
            known = ", ".join(names[:LISTED]) + more
            message = f"there is no model {name[:100]!r} here: choose one of {known}"
            raise RequestError(message, "model", status=404, code="model_not_found")
        return self._sources[name]

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
        except RequestError:
            raise
        except (EntropixError, MemoryError, OSError) as error:  # whose message may name a path
            _log.warning("%s cannot be loaded: %s", source.name, error)
            message = f"{source.name} cannot be loaded: the server's log says why"
            raise RequestError(message, "model", status=500, code="model_not_loaded") from None

    def _described(
        self, source: ModelSource, model: LanguageModel, tokenizer: TokenizerWrapper
    ) -> LoadedModel:
        profile = resolve(self._settings.profile, model.config)
        settings = replace(self._settings, profile=profile)
        served = ServedModel(source.name, model.config, settings)
        return LoadedModel(served, PromptMaker(served, tokenizer), tokenizer)

    def cards(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return OpenAI's descriptions of all models, or of that of a name.

        Raises:
            RequestError: there is none of that name.
        """
        sources = self._sources.values() if name is None else [self.find(name)]
        return [self._card(source.name) for source in sources]

    def _card(self, name: str) -> dict[str, Any]:
        card = {"id": name, "object": "model", "created": 0, "owned_by": "entropix_mlx"}
        if self.loaded is None or self.loaded.served.name != name:
            return card | {"entropix": {"loaded": False}}
        return card | {"entropix": {"loaded": True} | self.loaded.served.description()}
