"""`entropix serve`: a model behind OpenAI's HTTP interface."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from .. import limits
from ..backends.remote import KEY_VARIABLE
from ..errors import EntropixError, SettingsError, brief
from ..profiles.profile import AUTO
from ..settings import BATCH
from .shared import options, output, server_log
from .shared.loading import load_model
from .shared.output import INTERRUPTED

HOST, PORT = "127.0.0.1", 8080
MAX_TOKENS = 2048
MAX_QUEUE = 128
CACHE_MEMORY = 2**30
CACHE_DISK = 10 * 2**30
MODEL_SHARE = 2 / 3
"""The share of the memory that models may take together."""
ANY = "any"
"""The alias that stands for every name."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    options.add_model(parser)
    add = parser.add_argument
    others = "models, folders of models, and adapters, each loaded when it is asked for"
    add("--models", nargs="+", action="extend", type=options.nonempty, metavar="M", help=others)
    room = "memory for models (default: two thirds of this machine's)"
    add("--model-memory", type=_size, metavar="SIZE", help=room)
    alias = "another name of a model; any: the first model answers to every name; may be repeated"
    add("--model-alias", action="append", default=[], metavar="NAME=MODEL|any", help=alias)
    add("--allow-download", action="store_true", help="fetch models from the hub")
    add("--host", default=HOST, help=f"address to listen on (default: {HOST}, this machine only)")
    add("--port", type=_port, default=PORT, help=f"default {PORT}; 0 takes any that is free")
    add("--profile", default=AUTO, help="thresholds: a name, a TOML file, or auto (default)")
    what = f"{options.samplers()} (default: {options.DEFAULT_SAMPLER})"
    add("--sampler", default=options.DEFAULT_SAMPLER, help=what)
    most = "tokens of an answer, if the request sets no limit (default: %(default)s)"
    add("--max-tokens", type=options.positive, default=MAX_TOKENS, help=most)
    options.add_loops(parser, default="stop")
    options.add_thinking_budget(parser)
    at_once = "answers at once (default: %(default)s)"
    add("--batch", type=options.positive, default=BATCH, help=at_once)
    waiting = "requests that may wait (default: %(default)s)"
    add("--max-queue", type=options.count, default=MAX_QUEUE, help=waiting)
    memory = "memory for cached prompts, such as 512M (default: 1G; 0: no cache)"
    add("--cache-memory", type=_size, default=CACHE_MEMORY, metavar="SIZE", help=memory)
    folder = (
        "folder for cached prompts that leave memory, also when the server ends; it holds texts"
    )
    add("--cache-folder", type=options.file, metavar="FOLDER", help=folder)
    disk = "most disk space for them (default: 10G)"
    add("--cache-disk", type=_size, default=CACHE_DISK, metavar="SIZE", help=disk)
    add("--api-key", help=f"key that requests must send (or set {KEY_VARIABLE})")
    add("--api-key-file", type=options.file, metavar="FILE", help="a file that holds the key")
    add("--no-api-key", action="store_true", help="serve everybody who reaches --host")
    add(
        "--allow-origin",
        action="append",
        type=_origin,
        default=[],
        metavar="ORIGIN",
        help="allow requests from web pages of this origin, as in https://example.org; may be"
        " repeated",
    )
    add("--monitor", action="store_true", help="show the answers to other clients on the page")
    lines = "format of the log on stderr; json: an object a line, one for each request"
    add("--log", choices=(server_log.TEXT, server_log.JSON), default=server_log.TEXT, help=lines)
    options.add_verbose(parser)


def run(arguments: argparse.Namespace) -> int:
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise EntropixError("the server needs two more packages: pip install starlette uvicorn")
    from ..api import chat_template
    from ..checkpoints.loading import Extras
    from ..models.memory import usable_memory
    from ..server.app import Server
    from ..server.batching import Batcher, Capacity
    from ..server.catalog import Loading, find_sources
    from ..server.metrics import ServerMetrics
    from ..server.middleware import Access, is_loopback
    from ..server.models import Models, ModelSource
    from ..server.run_server import bind, make_listener
    from ..server.streaming import Monitor

    local = is_loopback(arguments.host)
    key = _key(arguments.api_key, arguments.api_key_file, arguments.no_api_key)
    if not local and key is None and not arguments.no_api_key:
        raise SettingsError(
            f"everybody who reaches {arguments.host} could use the model: give --api-key-file,"
            f" {KEY_VARIABLE} or --api-key, or --no-api-key if that is meant"
        )
    settings = options.to_settings(arguments)
    bound = bind(arguments.host, arguments.port)
    server_log.begin(arguments.log)
    model = options.model_options(arguments)
    extras = Extras(**model.extras)
    loading = Loading(extras, model.dequantize, arguments.allow_download)
    if model.ranks is not None:
        sources = [ModelSource(model.name, lambda _: load_model(model), stays=True)]
    else:
        sources = find_sources(model.model, arguments.models or (), loading)
    metrics = ServerMetrics()
    capacity = Capacity(
        arguments.batch,
        arguments.max_queue,
        arguments.cache_memory,
        arguments.cache_folder,
        arguments.cache_disk,
    )
    batcher = Batcher(capacity, metrics)
    models = Models(
        sources,
        batcher,
        settings,
        aliases=_aliases(arguments, sources[0].name),
        most_bytes=arguments.model_memory or int(usable_memory() * MODEL_SHARE),
    )
    chat_template.start()  # meanwhile
    batcher.start()
    try:
        if model.model is not None or not arguments.models:
            models.load_first()
    except KeyboardInterrupt:
        output.leave(INTERRUPTED)
    access = Access(key, tuple(arguments.allow_origin), only_local=local and key is None)
    server = Server(models, batcher, metrics, access, Monitor(arguments.monitor))
    listener = make_listener(server)
    bound.listen()
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    served = ", ".join(source.name for source in sources)
    output.info(f"serving {output.shortened(served)} at http://{shown}:{port}/v1 (Ctrl-C ends)")
    listener.listen(bound)
    if model.ranks is None:
        output.leave(0)
    return 0  # whereupon the coordinator ends all ranks


def _aliases(arguments: argparse.Namespace, first: str) -> dict[str, str]:
    """Return the models of other names, by these: those of the options and of the file."""
    configured = arguments.configuration.aliases if arguments.configuration else {}
    aliases = dict(configured)
    for given in arguments.model_alias:
        name, equals, model = given.partition("=")
        if given == ANY:
            aliases[ANY] = first
        elif equals and name and model:
            aliases[name] = model
        else:
            raise SettingsError(f"--model-alias: expected NAME=MODEL or any, not {brief(given)}")
    return aliases


def _key(given: str | None, file: Path | None, none: bool) -> str | None:
    if sum((given is not None, file is not None, none)) > 1:
        raise SettingsError("choose one of --api-key-file, --api-key and --no-api-key")
    if file is not None:
        given = limits.read_named(file, limits.CONFIGURATION_BYTES, SettingsError).strip()
    if given is None:
        given = os.environ.get(KEY_VARIABLE) or None
    if given is not None and not (given.strip() and given.isprintable()):
        raise SettingsError("the API key is empty, or holds characters that cannot be sent")
    return given


def _origin(text: str) -> str:
    """Parse an origin as browsers send it: a scheme and a host, without a path."""
    parts = urlsplit(text)
    if text != "*" and not (parts.netloc and text == f"{parts.scheme}://{parts.netloc}"):
        raise SettingsError(
            f"--allow-origin: expected an origin such as https://example.org, not {text!r}"
        )
    return text


def _port(text: str) -> int:
    port = limits.whole(text, 0, limits.PORT)
    if port is None:
        raise argparse.ArgumentTypeError(f"expected a port up to {limits.PORT}, not {text!r}")
    return port


def _size(text: str) -> int:
    digits, unit = text.rstrip("KMGTkmgtBb"), text.lstrip("0123456789").upper().removesuffix("B")
    if not (digits.isdecimal() and len(digits) <= 15 and unit in UNITS):
        raise argparse.ArgumentTypeError(f"expected a size such as 512M or 2G, not {text!r}")
    return int(digits) * UNITS[unit]
