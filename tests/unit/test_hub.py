"""Hub models, with stand-ins for the hub: what is asked for, in which order, and what breaks."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest

from entropix_mlx import load
from entropix_mlx.conversion.convert import convert
from entropix_mlx.errors import ModelNotFoundError, OutputError, UnsupportedModelError
from tests.checkpoints import write_folder
from tests.conftest import make_tiny_model


@pytest.fixture
def hub(tmp_path, byte_tokenizer, monkeypatch):
    """A hub with one model; yields its folder and the requests."""
    folder = write_folder(tmp_path / "hub", make_tiny_model(), byte_tokenizer)
    requests = []

    def snapshot_download(repository, allow_patterns):
        requests.append((repository, tuple(allow_patterns)))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return folder, requests


def test_the_configuration_comes_first_and_no_code_comes(hub):
    _, requests = hub
    load("some/model")
    assert requests[0] == ("some/model", ("config.json",))
    patterns = [pattern for _, some in requests for pattern in some]
    assert not any(Path("modeling.py").match(pattern) for pattern in patterns)
    assert not any(Path("pytorch_model.bin").match(pattern) for pattern in patterns)
    assert Path("model-00001-of-00002.safetensors").match(patterns[-1]), "the weights come last"


@pytest.mark.parametrize("kind", ["bert", "t5", "whisper"])
def test_another_architecture_costs_no_download(hub, kind):
    folder, requests = hub
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    with pytest.raises(UnsupportedModelError, match=f"'{kind}' is not supported"):
        load("some/model")
    assert requests == [("some/model", ("config.json",))]


def test_an_existing_folder_costs_no_download(hub, tmp_path):
    _, requests = hub
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError):
        convert("some/model", tmp_path / "out")
    assert requests == []


HASH = "0123456789abcdef0123456789abcdef01234567"


class HubServer(ThreadingHTTPServer):
    """A hub on this machine, with one model: the few answers that the hub's client asks for."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.files = {file.name: file.read_bytes() for file in folder.iterdir()}
        self.breaks_at = None
        """Bytes of the weights after which the connection breaks, or None."""
        self.stays_broken = False
        self.requests = []
        """`(method, path as it was sent, Range header or None)` each."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class HubHandler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET(with_body=False)

    def do_GET(self, with_body=True):
        server = self.server
        server.requests.append((self.command, self.path, self.headers["Range"]))
        path = self.path.split("?")[0]
        if "/api/models/" in path:
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": f"{index:040x}"}
                for index, (name, content) in enumerate(server.files.items())
            ]
            found = {"id": "tiny/llama", "sha": HASH, "siblings": []}
            return self._send(200, json.dumps(entries if "/tree/" in path else found).encode())
        name = path.rsplit("/", 1)[-1]
        if name not in server.files:
            return self._send(404, b"")
        content, begin = server.files[name], 0
        if self.headers["Range"]:
            begin = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        if server.breaks_at is not None and name.endswith(".safetensors") and with_body:
            if begin and server.stays_broken:
                return self._send(503, b"")
            if not begin:
                return self._send(200, content, name, cut=server.breaks_at)
        part = content[begin:]
        return self._send(206 if begin else 200, part, name, with_body=with_body, begin=begin)

    def _send(self, status, content, name="", with_body=True, begin=0, cut=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", HASH)
        self.send_header("ETag", f'"{name or "json"}"')
        if begin:
            total = begin + len(content)
            self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
        self.end_headers()
        if with_body:
            self.wfile.write(content[:cut])


@pytest.fixture
def server(tmp_path, byte_tokenizer, monkeypatch):
    """A hub that can be reached, with an empty cache."""
    served = HubServer(write_folder(tmp_path / "served", make_tiny_model(), byte_tokenizer))
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        served.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    huggingface_hub.utils.close_session()
    yield served
    huggingface_hub.utils.close_session()
    served.shutdown()
    thread.join()
    served.server_close()


def test_a_connection_that_breaks_is_taken_up_again(server, caplog):
    caplog.set_level("INFO", "entropix_mlx")
    server.breaks_at = 10_000
    load("tiny/llama")
    assert "asking the hub for tiny/llama" in caplog.text
    assert "bytes=10000-" in [wanted for _, _, wanted in server.requests]


def test_a_download_that_fails_is_never_half_used(server, monkeypatch):
    server.breaks_at, server.stays_broken = 10_000, True
    with pytest.raises(ModelNotFoundError, match="goes on with the others"):
        load("tiny/llama")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE forbids"):
        load("tiny/llama")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    server.breaks_at = None
    server.requests.clear()
    load("tiny/llama")
    fetched = {path.rsplit("/", 1)[-1] for kind, path, _ in server.requests if "resolve" in path}
    assert fetched == {"model.safetensors"}, "what came whole is not fetched again"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    server.requests.clear()
    load("tiny/llama")
    assert server.requests == []


def test_a_proxy_of_the_environment_is_used(server, monkeypatch):
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    template = "http://hub.invalid/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("http_proxy", server.url)
    load("tiny/llama")
    assert all(path.startswith("http://hub.invalid/") for _, path, _ in server.requests)
