"""Finding a file on the package indexes that pip and uv are configured to use.

Nothing is installed. What is found is compared with a known digest by whoever asks, so that it does
not matter which index has it.
"""

from __future__ import annotations

import html
import os
import re
from urllib.parse import unquote, urljoin, urlsplit

from .. import limits
from ..errors import DownloadError
from .pip_options import pip_option
from .urls import open_url, reading_from, without_password

PYPI = "https://pypi.org/simple"
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
    extra.append(pip_option("extra-index-url"))
    listed = [uv or pip_option("index-url") or PYPI, *" ".join(filter(None, extra)).split()]
    return list(dict.fromkeys(_NAME.sub("", url, count=1) for url in listed))


def _links(page: str) -> list[str]:
    """Return the URLs that a page of an index links to (PEP 503)."""
    asked = {"Accept": "text/html"}
    with reading_from(page), open_url(page, most=limits.INDEX_PAGE_BYTES, headers=asked) as file:
        content = file.read(limits.INDEX_PAGE_BYTES).decode("utf-8")
        led_to = getattr(file, "url", page)
        base = page if led_to == without_password(page) else led_to
        links = re.findall(r"""href\s*=\s*["']([^"'\s]+)""", content)
        return [urljoin(base, html.unescape(link)) for link in links]
