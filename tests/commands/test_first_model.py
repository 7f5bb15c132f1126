"""Where there is no model: the offer on a terminal, the error in a pipe, and stopped downloads."""

import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading

import pytest

from entropix_mlx.downloads.offers import DEMO_NAME, OFFERS, fitting_offers
from tests.commands.conftest import Terminal
from tests.conftest import TINY
from tests.downloads.serving import Serving

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """A machine without models and without a network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "no-index").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (tmp_path / "nor-this").as_uri())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def downloads(empty, monkeypatch, tiny_folder):
    """The demo model is a tiny one; returns how often it was downloaded."""
    asked = []

    def download(on_progress):
        asked.append(on_progress(1, 1))
        return tiny_folder

    monkeypatch.setattr("entropix_mlx.downloads.demo_model.download_demo_model", download)
    return asked


@pytest.mark.parametrize(
    "command", [["generate", "-p", "x"], ["chat", "--plain"], ["calibrate"], ["bench"]]
)
@pytest.mark.usefixtures("empty")
def test_in_a_pipe_the_command_is_named(entropix, command):
    code, out, err = entropix(*command)
    assert (code, out) == (2, "")
    assert "entropix models --download demo" in err
    assert err.count("\n") == 1


def test_yes_takes_the_demo_model(entropix, downloads, tiny_folder):
    code, out, _ = entropix("generate", "-p", "x", "-m", "3", "--yes", "--json")
    assert code == 0
    assert json.loads(out)["usage"]["completion_tokens"] == 3
    assert len(downloads) == 1


@pytest.mark.parametrize(("typed", "code"), [("\n", 0), ("0\nx\n1\n", 0), ("q\n", 2), ("", 2)])
def test_a_terminal_is_asked(entropix, downloads, monkeypatch, typed, code):
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    assert entropix("generate", "-p", "x", "-m", "3")[0] == code
    assert len(downloads) == (code == 0)
    assert all(offer.name.split("/")[-1] in screen.getvalue() for offer in OFFERS[:1])


def test_what_does_not_fit_is_not_offered():
    names = [[offer.name for offer in fitting_offers(gb * 10**9)] for gb in (1, 8, 64)]
    assert [len(some) for some in names] == [1, 3, 4]
    assert all(some[0] == DEMO_NAME for some in names)


@pytest.mark.parametrize("arguments", [["--download", "no such"], ["--download", DEMO_NAME]])
@pytest.mark.usefixtures("empty")
def test_a_download_that_fails_is_a_sentence(entropix, arguments):
    code, out, err = entropix("models", *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("entropix: ")


@pytest.mark.slow
@pytest.mark.usefixtures("empty")
def test_chat_asks_before_it_opens_its_screen():
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "entropix_mlx", "chat"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    os.write(ours, b"q\n")
    while b"no model was chosen" not in shown:
        shown += os.read(ours, 1000)
    assert process.wait(60) == 2
    os.close(ours)
    assert b"SmolLM" in shown or b"demo" in shown
    assert b"\x1b[?1049h" not in shown  # the full screen


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one model of random weights, and a new cache."""
    weights = os.urandom(2_000_000)
    files = {"config.json": json.dumps(TINY | {"model_type": "llama"}).encode()}
    lfs = {"size": len(weights), "pointerSize": 100}
    listed = [{"path": name, "size": len(text), "oid": "0" * 40} for name, text in files.items()]
    entry = {"path": "model.safetensors", "size": len(weights), "oid": "1" * 40}
    digest = hashlib.sha256(weights).hexdigest()
    info = {"id": "owner/tiny", "sha": REVISION, "siblings": []}
    for one in listed:
        info["siblings"].append({"rfilename": one["path"], "size": one["size"]})
    info["siblings"].append({"rfilename": entry["path"], "lfs": lfs | {"sha256": digest}})
    tree = [*(one | {"type": "file"} for one in listed)]
    tree.append(entry | {"type": "file", "lfs": lfs | {"oid": digest}})
    with Serving() as site:
        api = "/api/models/owner/tiny"
        described = {api: info, f"{api}/revision/main": info, f"{api}/tree/{REVISION}": tree}
        for path, record in described.items():
            site.files[path] = json.dumps(record).encode()
            site.headers[path] = {"Content-Type": "application/json"}
        for name, content in (files | {"model.safetensors": weights}).items():
            path = f"/owner/tiny/resolve/{REVISION}/{name}"
            etag = digest if content is weights else hashlib.sha1(content).hexdigest()
            site.files[path] = content
            site.headers[path] = {"ETag": f'"{etag}"', "X-Repo-Commit": REVISION}
        monkeypatch.setenv("HF_ENDPOINT", site.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield site, path, weights


@pytest.mark.slow
def test_weights_of_the_hub_go_on_after_ctrl_c(hub, tmp_path):
    site, path, weights = hub
    site.most, site.hold = 1_000_000, threading.Event()
    command = [sys.executable, "-m", "entropix_mlx", "models", "--download", "owner/tiny"]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert site.held.wait(60)
    (partial,) = (tmp_path / "home").rglob("*.incomplete")
    while partial.stat().st_size < 900_000:
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    begun = partial.stat().st_size
    site.hold.set()
    site.most, site.hold = None, None
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert f"bytes={begun}-" in site.ranges(path)
    (found,) = (tmp_path / "home").rglob("model.safetensors")
    assert found.read_bytes() == weights
    assert not list((tmp_path / "home").rglob("*.incomplete"))
