"""`entropix serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from cyclopts import Parameter
from cyclopts.validators import Number

from .. import limits
from ..configuration import KEY_VARIABLE
from ..errors import EntropixError, SettingsError
from ..files import expanded
from ..settings import BATCH, Settings
from .shared import output
from .shared.loading import load_model
from .shared.options import FIRST, Count, File, ModelOptions, command
from .shared.output import INTERRUPTED

if TYPE_CHECKING:
    from ..server.models import ModelSource

MAX_QUEUE = 128
"""Requests that may wait."""


def _to_bytes(_: Any, tokens: Sequence[Any]) -> int:
    """Convert a size such as 512M."""
    from pydantic import ByteSize, TypeAdapter

    try:
        return TypeAdapter(ByteSize).validate_python(tokens[0].value)
    except ValueError:
        raise ValueError("expected a size such as 512M or 2G") from None


def _check_origins(_: Any, origins: Sequence[str]) -> None:
    """Refuse what no browser sends as an origin: it is a scheme and a host, without a path."""
    for origin in origins:
        parts = urlsplit(origin)
        if origin != "*" and not (parts.netloc and origin == f"{parts.scheme}://{parts.netloc}"):
            raise ValueError(f"expected an origin such as https://example.org, not {origin!r}")


@command(
    "sampler", "profile", "max_tokens", "loops", "thinking_budget", max_tokens=2048, loops="stop"
)
def serve(
    *,
    model: ModelOptions = ModelOptions(),
    models: tuple[Path, ...] = (),
    host: Annotated[str, Parameter(group=FIRST)] = "127.0.0.1",
    port: Annotated[int, Parameter(group=FIRST, validator=Number(gte=0, lte=limits.PORT))] = 8080,
    settings: Settings,
    batch: Count = BATCH,
    cache_memory: Annotated[int, Parameter(converter=_to_bytes, show_default=False)] = 10**9,
    api_key_file: Annotated[File, Parameter(group=FIRST)] = None,
    no_api_key: bool = False,
    allow_origin: Annotated[tuple[str, ...], Parameter(validator=_check_origins)] = (),
) -> int:
    """Answer the requests of OpenAI's clients.

    Args:
        models: another model, or a folder of models, which a request may have loaded instead; may
            be repeated
        host: address to listen on (the default: this machine only)
        port: 0 takes any that is free
        batch: answers at once
        cache_memory: memory for cached prompts, such as 512M (default: 1G); 0 for no cache
        api_key_file: a file that holds the key that requests must send (or set ENTROPIX_API_KEY)
        no_api_key: serve everybody who reaches --host
        allow_origin: allow requests from web pages of this origin, as in https://example.org; may
            be repeated
    """
    if not all(map(find_spec, ("starlette", "uvicorn", "prometheus_client"))):
        raise EntropixError("the server needs more packages: pip install '.[server]' in the clone")
    from ..api.runner import follow
    from ..models.ranks import launched, share
    from ..server.access import Access, is_loopback
    from ..server.app import Server
    from ..server.engine import Capacity, ServingEngine
    from ..server.listening import bind, make_listener
    from ..server.metrics import ServerMetrics
    from ..server.models import Models

    local = is_loopback(host)
    key = _key(api_key_file, no_api_key)
    if not local and key is None and not no_api_key:
        raise SettingsError(
            f"everybody who reaches {host} could use the model: give --api-key-file or"
            f" {KEY_VARIABLE}, or --no-api-key if that is meant"
        )
    group = launched()
    if group is not None and group.rank():
        follow(*load_model(model), batch, cache_memory)
        output.leave(0)
    capacity = Capacity(batch, MAX_QUEUE, cache_memory)
    sources = _sources(model, models)
    bound = bind(host, port)
    _log_as_a_server()
    engine = ServingEngine(capacity, ServerMetrics())
    try:
        served = Models(sources, engine, settings)
    except KeyboardInterrupt:
        output.leave(INTERRUPTED)
    access = Access(key, allow_origin, only_local=local and key is None)
    listener = make_listener(Server(served, engine, access))
    bound.listen()
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    output.info(
        f"serving {output.shortened(sources[0].name)} at http://{shown}:{port}/v1 (Ctrl-C ends)"
    )
    listener.listen(bound)
    if group is not None:
        share(None, group)
    output.leave(0)


def _log_as_a_server() -> None:
    """Print what we and the libraries log, warnings included; nothing about requests is logged."""
    import transformers  # noqa: F401  # which gives its logger a handler when it is imported

    for library in map(logging.getLogger, ("entropix_mlx", "transformers", "huggingface_hub")):
        library.handlers.clear()
        library.propagate = True
    logging.basicConfig(format="%(message)s")
    logging.captureWarnings(True)


def _sources(model: ModelOptions, others: Iterable[Path]) -> list[ModelSource]:
    """Return the model to begin with, and those that a request may name instead."""
    from ..checkpoints.local import cached, models_in
    from ..models.ranks import launched
    from ..server.models import ModelSource

    first = ModelSource(model.name, partial(load_model, model))
    if launched() is not None:
        return [first]
    found = {
        path.name: str(path)
        for other in others
        for path in models_in(expanded(other, SettingsError))
    }
    for name, folder in cached():
        if (folder / "tokenizer_config.json").exists():
            found.setdefault(name, name)
    found.pop(first.name, None)
    named = [(name, replace(model, model=place)) for name, place in found.items()]
    return [first, *(ModelSource(name, partial(load_model, options)) for name, options in named)]


def _key(file: Path | None, none: bool) -> str | None:
    if file is not None and none:
        raise SettingsError("--api-key-file and --no-api-key are opposites: leave one out")
    key = os.environ.get(KEY_VARIABLE) or None
    if file is not None:
        key = limits.read_named(file, limits.CONFIGURATION_BYTES, SettingsError).strip()
    if key is not None and not (key.strip() and key.isprintable()):
        raise SettingsError("the API key is empty, or holds characters that cannot be sent")
    return None if none else key
