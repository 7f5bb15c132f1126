"""What pip is configured to do: its environment variables, then its configuration files."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .. import limits

SYSTEM = Path("/etc/pip.conf")


def pip_option(name: str) -> str | None:
    """Return an option as ``index-url``; files that cannot be read count as empty."""
    if given := os.environ.get(f"PIP_{name.upper().replace('-', '_')}"):
        return given
    parser = configparser.RawConfigParser(strict=False)
    for path in _files():
        with suppress(OSError, UnicodeDecodeError, configparser.Error):
            parser.read_string(limits.read_text(path, limits.CONFIGURATION_BYTES))
    found = (parser.get(section, name, fallback=None) for section in ("install", "global"))
    return next(filter(None, found), None)


def _files() -> Iterator[Path]:
    """Yield where pip looks, the weakest first."""
    yield SYSTEM
    with suppress(RuntimeError):  # there is no home folder
        home = Path.home()
        yield home / ".pip/pip.conf"
        yield Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
        if sys.platform == "darwin":
            yield home / "Library/Application Support/pip/pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if own := os.environ.get("PIP_CONFIG_FILE"):
        yield Path(own)
