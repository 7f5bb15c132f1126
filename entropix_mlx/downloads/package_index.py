"""Finding a file on the package indexes that pip and uv are configured to use.

Nothing is installed. What is found is compared with a known digest by whoever asks, so that it does
not matter which index has it.
"""

from __future__ import annotations

import configparser
import html
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from .. import limits
from ..errors import DownloadError
from .resuming import open_url, without_password

PYPI = "https://pypi.org/simple"
PIP_FILES = [
    "/etc/pip.conf",
    "~/.pip/pip.conf",
    "~/.config/pip/pip.conf",
    "~/Library/Application Support/pip/pip.conf",
    f"{sys.prefix}/pip.conf",
]
"""Where pip looks, the weakest first."""
_NAME = re.compile(r"[\w.-]+=(?=\w+:)")  # uv lets an index have a name: NAME=URL


def find_file(project: str, name: str) -> str:
    """Return the URL of a file of a project on the first index that has it.

    Raises:
        DownloadError: no index has it; the message says why for each.
    """
    faults = []
    for index in indexes():
        page = f"{index.rstrip('/')}/{project}/"
        try:
            for link in _links(page):
                if unquote(urlsplit(link).path).endswith(f"/{name}"):
                    return link
            faults.append(f"{without_password(page)} does not list it")
        except DownloadError as error:
            faults.append(str(error))
    raise DownloadError(
        f"no package index has {name}: {'; '.join(faults)}. Check the connection, or set"
        " PIP_INDEX_URL to an index that mirrors PyPI"
    )


def indexes() -> list[str]:
    """Return the URLs of the configured indexes, the main one first; without any, PyPI's."""
    uv = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    extra = [os.environ.get(name) for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL")]
    extra.append(_pip_option("extra-index-url"))
    listed = [uv or _pip_option("index-url") or PYPI, *" ".join(filter(None, extra)).split()]
    return list(dict.fromkeys(_NAME.sub("", url, count=1) for url in listed))


def _pip_option(name: str) -> str | None:
    if given := os.environ.get(f"PIP_{name.upper().replace('-', '_')}"):
        return given
    parser = configparser.RawConfigParser(strict=False)
    for path in (*PIP_FILES, os.environ.get("PIP_CONFIG_FILE", "")):
        with suppress(OSError, UnicodeDecodeError, configparser.Error):
            file = Path(os.path.expanduser(path))
            parser.read_string(limits.read_text(file, limits.CONFIGURATION_BYTES))
    found = (parser.get(section, name, fallback=None) for section in ("install", "global"))
    return next(filter(None, found), None)


def _links(page: str) -> list[str]:
    """Return the URLs that a page of an index links to (PEP 503)."""
    with open_url(page, limits.INDEX_PAGE_BYTES, {"Accept": "text/html"}) as file:
        content = file.read(limits.INDEX_PAGE_BYTES).decode("utf-8")
        links = re.findall(r"""href\s*=\s*["']([^"'\s]+)""", content)
        led_to = getattr(file, "url", page)
        base = page if led_to == without_password(page) else led_to
        return [urljoin(base, html.unescape(link)) for link in links]
