"""The log of a server on stderr: a line of text or of JSON for what we and the libraries say."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from . import output

TEXT, JSON = "text", "json"
OURS = "entropix_mlx"
REQUESTS = f"{OURS}.server.requests"
"""The logger that has a record of each request; its `extra` is under `FIELDS`."""
FIELDS = "fields"
_OWN_HANDLERS = ("transformers", "huggingface_hub")
"""Libraries that print by themselves."""


def begin(kind: str) -> None:
    """Print whatever is logged from now on, warnings included, as a server does.

    Each request is a line of JSON; as text, only what is worth reading is printed.
    """
    handler = _ServerHandler(_as_json if kind == JSON else _as_text)
    import transformers  # noqa: F401  # which gives its logger a handler when it is imported

    for logger in map(logging.getLogger, (OURS, *_OWN_HANDLERS)):
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    logging.getLogger(REQUESTS).setLevel(logging.INFO if kind == JSON else logging.WARNING)


class _ServerHandler(logging.Handler):
    def __init__(self, form: Any) -> None:
        super().__init__()
        self._form = form

    def emit(self, record: logging.LogRecord) -> None:
        output.report(self._form(record))


def _as_text(record: logging.LogRecord) -> str:
    library = "" if record.name.startswith(OURS) else f"{record.name}: "
    said = record.getMessage() if not library else output.shortened(record.getMessage())
    fault = _fault(record)
    return f"{library}{said.strip()}" + (f"\n{fault}" if fault else "")


def _as_json(record: logging.LogRecord) -> str:
    fields: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
        **getattr(record, FIELDS, {}),
    }
    if fault := _fault(record):
        fields["exception"] = fault
    return json.dumps(fields)


def _fault(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
