"""`entropix serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from .. import limits
from ..configuration import KEY_VARIABLE
from ..errors import EntropixError, SettingsError
from ..settings import BATCH, Settings
from .shared import output
from .shared.loading import load_model
from .shared.options import FIRST, File, ModelOptions, command
from .shared.output import INTERRUPTED

if TYPE_CHECKING:
    from ..server.models import ModelSource

MAX_QUEUE = 128
"""Requests that may wait."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@command(
    "sampler", "profile", "max_tokens", "loops", "thinking_budget", max_tokens=2048, loops="stop"
)
def serve(
    *,
    model: ModelOptions = ModelOptions(),
    models: tuple[Path, ...] = (),
    host: Annotated[str, Parameter(group=FIRST)] = "127.0.0.1",
    port: Annotated[int, Parameter(group=FIRST)] = 8080,
    settings: Settings,
    batch: int = BATCH,
    cache_memory: str = "1G",
    api_key_file: Annotated[File, Parameter(group=FIRST)] = None,
    no_api_key: bool = False,
    allow_origin: tuple[str, ...] = (),
) -> int:
    """Answer the requests of OpenAI's clients.

    Args:
        models: another model, or a folder of models, which a request may have loaded instead; may
            be repeated
        host: address to listen on (the default: this machine only)
        port: 0 takes any that is free
        batch: answers at once
        cache_memory: memory for cached prompts, such as 512M; 0 for no cache
        api_key_file: a file that holds the key that requests must send (or set ENTROPIX_API_KEY)
        no_api_key: serve everybody who reaches --host
        allow_origin: allow requests from web pages of this origin, as in https://example.org; may
            be repeated
    """
    if not all(map(find_spec, ("starlette", "uvicorn", "prometheus_client"))):
        raise EntropixError("the server needs more packages: pip install 'entropix_mlx[server]'")
    from ..api.runner import follow
    from ..models.ranks import share
    from ..server.access import Access, is_loopback
    from ..server.app import Server
    from ..server.engine import Capacity, ServingEngine
    from ..server.listening import bind, make_listener
    from ..server.metrics import ServerMetrics
    from ..server.models import Models

    for origin in allow_origin:
        _check_origin(origin)
    if not 0 <= port <= limits.PORT or batch < 1:
        raise SettingsError(f"--port is at most {limits.PORT}, --batch at least 1")
    local = is_loopback(host)
    key = _key(api_key_file, no_api_key)
    if not local and key is None and not no_api_key:
        raise SettingsError(
            f"everybody who reaches {host} could use the model: give --api-key-file or"
            f" {KEY_VARIABLE}, or --no-api-key if that is meant"
        )
    if model.group is not None and model.group.rank():
        follow(*load_model(model), batch, _size(cache_memory))
        output.leave(0)
    capacity = Capacity(batch, MAX_QUEUE, _size(cache_memory))
    bound = bind(host, port)
    _log_as_a_server()
    sources = _sources(model, [path.expanduser() for path in models])
    engine = ServingEngine(capacity, ServerMetrics())
    engine.start()
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
    if model.group is not None:
        share(None, model.group)
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
    from ..server.models import ModelSource

    def source(name: str, options: ModelOptions) -> ModelSource:
        return ModelSource(name, lambda: load_model(options))

    first = source(model.name, model)
    if model.group is not None:
        return [first]
    from ..checkpoints.local import cached, models_in

    named = [first] + [
        source(path.name, replace(model, model=str(path)))
        for other in others
        for path in models_in(other)
    ]
    named += [
        source(name, replace(model, model=name))
        for name, folder in cached()
        if (folder / "tokenizer_config.json").exists()
    ]
    return list({one.name: one for one in reversed(named)}.values())[::-1]


def _key(file: Path | None, none: bool) -> str | None:
    if file is not None and none:
        raise SettingsError("--api-key-file and --no-api-key are opposites: leave one out")
    key = os.environ.get(KEY_VARIABLE) or None
    if file is not None:
        key = limits.read_named(file, limits.CONFIGURATION_BYTES, SettingsError).strip()
    if key is not None and not (key.strip() and key.isprintable()):
        raise SettingsError("the API key is empty, or holds characters that cannot be sent")
    return None if none else key


def _check_origin(text: str) -> None:
    """Refuse what is not an origin as browsers send it: a scheme and a host, without a path."""
    parts = urlsplit(text)
    if text != "*" and not (parts.netloc and text == f"{parts.scheme}://{parts.netloc}"):
        raise SettingsError(
            f"--allow-origin: expected an origin such as https://example.org, not {text!r}"
        )


def _size(text: str) -> int:
    digits, unit = text.rstrip("KMGTkmgtBb"), text.lstrip("0123456789").upper().removesuffix("B")
    if not (digits.isdecimal() and len(digits) <= 15 and unit in UNITS):
        raise SettingsError(f"--cache-memory: expected a size such as 512M or 2G, not {text!r}")
    return int(digits) * UNITS[unit]
