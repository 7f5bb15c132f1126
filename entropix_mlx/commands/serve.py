"""`entropix serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

import argparse
import os
import socket
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..backends.remote import KEY_VARIABLE
from ..errors import EntropixError, SettingsError
from ..files import expanded
from ..profiles.selection import AUTO, resolve
from ..settings import BATCH, Settings
from .shared import arg_types, options, output

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel

HOST, PORT = "127.0.0.1", 8080
LARGEST_PORT = 65535
MAX_TOKENS = 2048
MAX_QUEUE = 128
CACHE_MEMORY = 2**30
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    options.add_model(parser)
    add = parser.add_argument
    add("--host", default=HOST, help=f"address to listen on (default: {HOST}, this machine only)")
    add("--port", type=_port, default=PORT, help=f"default {PORT}; 0 takes any that is free")
    add("--profile", default=AUTO, help="thresholds: a name, a TOML file, or auto (default)")
    add("--sampler", default=options.DEFAULT_SAMPLER, help=f"{options.samplers()}")
    add(
        "--max-tokens",
        type=arg_types.positive,
        default=MAX_TOKENS,
        help=f"of an answer whose request names none (default: {MAX_TOKENS})",
    )
    add(
        "--batch",
        type=arg_types.positive,
        default=BATCH,
        help=f"answers at once (default: {BATCH})",
    )
    add(
        "--max-queue",
        type=arg_types.count,
        default=MAX_QUEUE,
        help=f"answers that may wait beside them (default: {MAX_QUEUE})",
    )
    add(
        "--cache-memory",
        type=_size,
        default=CACHE_MEMORY,
        metavar="SIZE",
        help="memory for prompts that come again, such as 512M (default: 1G; 0 is off)",
    )
    _add_access(parser)
    options.add_verbose(parser)


def _add_access(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--api-key", help=f"key that a request must show (or in {KEY_VARIABLE})")
    add("--api-key-file", type=arg_types.file, metavar="FILE", help="a file that holds the key")
    add("--no-api-key", action="store_true", help="let anybody in who reaches another --host")
    add(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin ask, as in https://example.org; may be repeated",
    )
    add("--monitor", action="store_true", help="let the page show what other clients are answered")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise EntropixError("the server needs two more packages: pip install starlette uvicorn")
    from ..server.app import Server
    from ..server.batching import Batcher, Capacity
    from ..server.metrics import ServerMetrics
    from ..server.middleware import Access, is_loopback
    from ..server.model_info import ServedModel
    from ..server.run_server import bind, listen
    from ..server.streaming import Monitor

    origins = tuple(_origin(origin) for origin in arguments.allow_origin)
    local = is_loopback(arguments.host)
    key = _key(arguments)
    if not local and key is None and not arguments.no_api_key:
        raise SettingsError(
            f"everybody who reaches {arguments.host} could use the model: give --api-key-file,"
            f" {KEY_VARIABLE} or --api-key, or --no-api-key if that is meant"
        )
    settings = Settings(
        max_tokens=arguments.max_tokens, sampler=arguments.sampler, profile=arguments.profile
    )
    settings.check()
    bound = bind(arguments.host, arguments.port)

    def load() -> tuple[LanguageModel, TokenizerWrapper]:
        return options.load_model(arguments)

    metrics = ServerMetrics()
    capacity = Capacity(arguments.batch, arguments.max_queue, arguments.cache_memory)
    batcher = Batcher(load, capacity, metrics)
    batcher.start()
    config = batcher.model.config
    settings = replace(settings, profile=resolve(settings.profile, config))
    served = ServedModel(options.model_name(arguments), config, settings)
    access = Access(key, origins, only_local=local and key is None)
    bound.listen()
    if arguments.verbose:
        _announce(bound, served.name)
    listen(Server(served, batcher, metrics, access, Monitor(arguments.monitor)), bound)
    return 0


def _announce(bound: socket.socket, name: str) -> None:
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    output.tell(f"serving {name} at http://{shown}:{port}/v1 (Ctrl-C ends)")


def _key(arguments: argparse.Namespace) -> str | None:
    """Return the key, or None."""
    sources = (arguments.api_key, arguments.api_key_file, arguments.no_api_key or None)
    if sum(source is not None for source in sources) > 1:
        raise SettingsError("choose one of --api-key-file, --api-key and --no-api-key")
    given: str | None = arguments.api_key
    if given is None and arguments.api_key_file is not None:
        given = _read_key(arguments.api_key_file)
    if given is None:
        given = os.environ.get(KEY_VARIABLE) or None
    if given is not None and not (given.strip() and given.isprintable()):
        raise SettingsError("the API key is empty, or holds characters that cannot be sent")
    return given


def _read_key(path: Path) -> str:
    try:
        return expanded(str(path), SettingsError).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot read the API key in {path}: {reason}") from error


def _origin(text: str) -> str:
    """Check an origin as browsers send it: a scheme and a host, without a path."""
    parts = urlsplit(text)
    if text != "*" and not (parts.netloc and text == f"{parts.scheme}://{parts.netloc}"):
        raise SettingsError(f"--allow-origin: an origin such as https://example.org, not {text!r}")
    return text


def _port(text: str) -> int:
    if not (text.isdecimal() and len(text) <= 5 and int(text) <= LARGEST_PORT):
        raise argparse.ArgumentTypeError(f"a port up to {LARGEST_PORT}, not {text!r}")
    return int(text)


def _size(text: str) -> int:
    """Parse a size such as 512M."""
    digits, unit = text.rstrip("KMGTkmgtBb"), text.lstrip("0123456789").upper().removesuffix("B")
    if not (digits.isdecimal() and len(digits) <= 15 and unit in UNITS):
        raise argparse.ArgumentTypeError(f"a size such as 512M or 2G, not {text!r}")
    return int(digits) * UNITS[unit]
