"""What a server may be asked for: from the names that it was started with to models' sources."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from .. import limits
from .._version import __version__
from ..errors import ModelNotFoundError, SettingsError, WeightsError
from ..files import reading
from ..models.config import read_object
from .models import ModelSource

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..checkpoints.loading import Extras
    from ..models.base import LanguageModel


@dataclass(frozen=True)
class Loading:
    """How the models of a server are found and loaded."""

    extras: Extras
    dequantize: bool | None = None
    allow_download: bool = False
    """Whether what is not in the hub's cache may be fetched."""


@dataclass(frozen=True)
class _NamedModel:
    name: str
    model: str
    """A folder, a file or a hub id."""
    adapter: Path | None = None
    base: str | None = None
    has_adapters: bool = False


def find_sources(first: str | None, others: Iterable[str], loading: Loading) -> list[ModelSource]:
    """Return the sources of a model and of others: models, folders of them, and adapters.

    The name of each is the last part of its path or hub id. The base of adapters is the model that
    their configuration names; it must be one of the others.

    Raises:
        ModelNotFoundError: there is no such model.
        SettingsError: two have one name, or the base of adapters is none of them.
    """
    from ..checkpoints.locate import default_model

    given = [*others]
    if first is not None or not given:
        given.insert(0, first if first is not None else default_model())
    models: dict[str, _NamedModel] = {}
    for one in (found for each in given for found in _found(each, loading)):
        known = models.setdefault(one.name, one)
        if (known.model, known.adapter) != (one.model, one.adapter):
            raise SettingsError(
                f"two models are called {one.name}: {known.adapter or known.model} and"
                f" {one.adapter or one.model}; rename the folder of one of them"
            )
    adapted = {one.name: _base_of(one, models) for one in models.values() if one.adapter}
    for name, base in adapted.items():
        models[name] = replace(models[name], model=models[base].model, base=base)
        models[base] = replace(models[base], has_adapters=True)
    return [_source(one, loading) for one in models.values()]


def _found(given: str, loading: Loading) -> Iterator[_NamedModel]:
    from ..checkpoints.adapters import CONFIG
    from ..checkpoints.inventory import models_in
    from ..checkpoints.locate import locate

    path = Path(os.path.abspath(os.path.expanduser(given)))
    if not os.path.exists(path):  # unlike Path's, it takes a name that is too long
        if not loading.allow_download:
            locate(given, offline=True)
        yield _NamedModel(_last(given), given)
        return
    adapters = sorted(file.parent for file in (*path.glob(CONFIG), *path.glob(f"*/{CONFIG}")))
    models = models_in(path) if path not in adapters else []
    if not models and not adapters:
        raise ModelNotFoundError(f"{given} holds no model: name one, or a folder of models")
    for folder in models:
        if folder not in adapters:
            yield _NamedModel(_last(str(folder)), str(folder))
    for folder in adapters:
        yield _NamedModel(_last(str(folder)), "", folder)


def _base_of(found: _NamedModel, models: Mapping[str, _NamedModel]) -> str:
    """Return the name of the model that adapters were trained on."""
    from ..checkpoints.adapters import CONFIG

    assert found.adapter is not None
    stated = str(read_object(found.adapter / CONFIG, limits.CONFIG_BYTES).get("model"))
    base = models.get(_last(stated))
    if base is None or base.adapter is not None:
        raise SettingsError(
            f"the adapters {found.adapter} were trained on {stated}: name that model, too"
        )
    return base.name


def _source(found: _NamedModel, loading: Loading) -> ModelSource:
    from ..checkpoints.locate import locate

    offline = not loading.allow_download
    return ModelSource(
        found.name,
        load=partial(_load, found, loading),
        measure=cache(partial(_measure, found)),
        prepare=partial(locate, found.model, offline=offline),
        identify=partial(_identify, found, loading),
        base=found.base,
    )


def _load(
    found: _NamedModel, loading: Loading, base: LanguageModel | None
) -> tuple[LanguageModel, TokenizerWrapper]:
    from ..checkpoints.loading import load
    from ..checkpoints.locate import locate

    extras = loading.extras
    if found.adapter is not None:
        extras = replace(extras, adapter_path=found.adapter)
    path = locate(found.model, offline=True)
    return load(
        path,
        dequantize=loading.dequantize,
        extras=extras,
        tapped=found.has_adapters,
        base=base,
    )


def _measure(found: _NamedModel) -> int:
    """Return the bytes that a model takes in memory, of whose files only the headers are read."""
    from ..checkpoints.inventory import memory_needed, skeleton_of
    from ..checkpoints.locate import locate, open_checkpoint
    from ..models.llama.weight_layout import dense_bytes, should_unpack

    model, _ = skeleton_of(open_checkpoint(locate(found.model, offline=True)))
    return max(memory_needed(model), dense_bytes(model) if should_unpack(model) else 0)


def _identify(found: _NamedModel, loading: Loading) -> str:
    """Return what the caches of a model depend on: its weights, its adapters and how it is run."""
    from ..checkpoints.adapters import CONFIG, WEIGHTS
    from ..checkpoints.checkpoint import digest
    from ..checkpoints.locate import locate, open_checkpoint

    parts = [digest(open_checkpoint(locate(found.model, offline=True)))]
    adapter = found.adapter or loading.extras.adapter_path
    for name in (CONFIG, WEIGHTS) if adapter is not None else ():
        file = Path(str(adapter)) / name
        with reading(file, WeightsError):
            parts.append(sha256(file.read_bytes()).hexdigest())
    return f"{parts} {loading.dequantize} {found.has_adapters} {loading.extras} {__version__}"


def _last(given: str) -> str:
    return given.rstrip("/").rpartition("/")[2] or given
