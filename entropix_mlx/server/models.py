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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api.learned import OFFER, learn
from ..errors import EntropixError, ProfileError
from ..models.config import ModelShape, fingerprint
from ..profiles.fields import spell_infinities
from ..profiles.profile import AUTO, Profile, builtin_names, profile_for, resolve, user_folder
from ..settings import Settings
from .engine import ServingEngine
from .errors import RequestError
from .prompts import PromptMaker

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel

LISTED = 20
"""Names that the error of an unknown one lists."""
_NOT_NUMBERS = ("name", "description", "calibration")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """A model that may be asked for."""

    name: str
    load: Callable[[], tuple[LanguageModel, TokenizerWrapper]]
    """Loads it, on the model's thread."""


@dataclass(frozen=True)
class ServedModel:
    """A model under its name, and how it answers unless a request says otherwise."""

    name: str
    config: ModelShape
    settings: Settings
    """The defaults of requests; with a profile that was read."""

    @property
    def profile(self) -> Profile:
        return Profile.load(self.settings.profile)

    def description(self) -> dict[str, Any]:
        tables = self.profile.model_dump()
        numbers = {name: value for name, value in tables.items() if name not in _NOT_NUMBERS}
        return {
            "context_length": self.config.max_position_embeddings,
            "fingerprint": fingerprint(self.config),
            "sampler": self.settings.sampler,
            "profiles": [AUTO, *builtin_names(), *sorted(_calibrated())],
            "profile": spell_infinities(numbers),
        }

    def find_profile(self, name: str) -> Profile:
        """Return a built-in or calibrated profile: never a file that a request names.

        Raises:
            RequestError: there is none of that name, or it is damaged.
        """
        if name == AUTO:
            return profile_for(self.config)
        files = {**dict.fromkeys(builtin_names()), **_calibrated()}
        if name not in files:
            known = ", ".join((AUTO, *files))
            raise RequestError(f"no profile {name[:60]!r}: choose one of {known}", "profile")
        try:
            return Profile.load(files[name] or name)
        except ProfileError:  # whose message names the file
            message = f"the profile {name!r} is damaged: entropix calibrate --show says how"
            raise RequestError(message, "profile") from None


def _calibrated() -> dict[str, Path]:
    return {file.stem: file for file in user_folder().glob("*.toml")}


class Models:
    """The models that a server answers with, of which one is in memory."""

    def __init__(
        self, sources: Iterable[ModelSource], engine: ServingEngine, settings: Settings
    ) -> None:
        """List the models and load the first; errors of loading are raised here."""
        self._engine = engine
        self._settings = settings
        self._sources = {source.name: source for source in sources}
        self._turn = asyncio.Lock()
        self._users = 0
        self._free = asyncio.Event()
        first = next(iter(self._sources.values()))
        self.loaded: PromptMaker | None = self._prompts(first, *engine.load(first.load).result())

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
    async def use(self, name: str | None) -> AsyncIterator[PromptMaker]:
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
            self.loaded = self._prompts(source, *await asyncio.shield(loading))
        except asyncio.CancelledError:
            await asyncio.wait([loading])  # whoever is next must not load beside it
            raise
        except RequestError:
            raise
        except (EntropixError, MemoryError, OSError) as error:  # whose message may name a path
            _log.warning("%s cannot be loaded: %s", source.name, error)
            message = f"{source.name} cannot be loaded: the server's log says why"
            raise RequestError(message, "model", status=500, code="model_not_loaded") from None

    def _prompts(
        self, source: ModelSource, model: LanguageModel, tokenizer: TokenizerWrapper
    ) -> PromptMaker:
        if self._settings.profile == AUTO:
            counts = learn(model, lambda: _log.warning(OFFER))
            if counts is not None and counts.ready:
                _log.warning(OFFER)
        settings = replace(self._settings, profile=resolve(self._settings.profile, model.config))
        return PromptMaker(ServedModel(source.name, model.config, settings), tokenizer)

    def cards(self) -> list[dict[str, Any]]:
        """Return OpenAI's descriptions of all models."""
        return [self.card(name) for name in self._sources]

    def card(self, name: str) -> dict[str, Any]:
        """Return OpenAI's description of a model.

        Raises:
            RequestError: there is none of that name.
        """
        about = {"loaded": False}
        if self.loaded is not None and self.loaded.served.name == self.find(name).name:
            about = {"loaded": True} | self.loaded.served.description()
        card = {"id": name, "object": "model", "created": 0, "owned_by": "entropix_mlx"}
        return card | {"entropix": about}
