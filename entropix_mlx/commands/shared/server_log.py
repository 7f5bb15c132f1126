"""The log of a server on stderr: what we and the libraries say, and nothing about requests."""

from __future__ import annotations

import logging

from . import output

OURS = "entropix_mlx"
_OWN_HANDLERS = ("transformers", "huggingface_hub")
"""Libraries that print by themselves."""


def begin() -> None:
    """Print whatever is logged from now on, warnings included, as a server does."""
    import transformers  # noqa: F401  # which gives its logger a handler when it is imported

    for logger in map(logging.getLogger, (OURS, *_OWN_HANDLERS)):
        logger.handlers.clear()
        logger.propagate = True
    logging.getLogger().addHandler(_ServerHandler())
    logging.captureWarnings(True)


class _ServerHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        library = "" if record.name.startswith(OURS) else f"{record.name}: "
        said = record.getMessage() if not library else output.shortened(record.getMessage())
        fault = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        output.report(f"{library}{said.strip()}" + (f"\n{fault}" if fault else ""))
