"""Paths and files: what cannot be written is said in one way."""

import errno
import os
import resource
import stat
from contextlib import nullcontext
from io import FileIO
from pathlib import Path

import pytest

from entropix_mlx.errors import OutputError
from entropix_mlx.files import expanded, write_line, write_whole, writing


def test_a_home_folder_is_spelt_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert expanded("~/file", OutputError) == Path("/home/somebody/file")
    assert expanded("a/~/file", OutputError) == Path("a/~/file")
    for name in ("~nobody-at-all/x", "x" * 300, "x/" * 3000, "x\0"):
        with pytest.raises(OutputError, match=name[:20].replace("\0", ".*")):
            expanded(name, OutputError)


@pytest.mark.parametrize(("number", "advice"), [(errno.EACCES, ""), (errno.ENOSPC, "make room")])
def test_what_cannot_be_written_is_named(number, advice):
    named = f"^cannot write some/file: .*{advice}"
    with pytest.raises(OutputError, match=named), writing("some/file", OutputError):
        raise OSError(number, os.strerror(number))


def test_a_file_is_written_whole(tmp_path):
    file = tmp_path / "file"
    write_whole(file, "é\n")
    assert file.read_text("utf-8") == "é\n"
    write_whole(file, "\ud800")
    assert file.read_text("utf-8") == "?", "half of a pair is no reason to lose a chat"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    (tmp_path / "other").touch()
    assert file.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_of_a_line_that_does_not_fit_nothing_is_left(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with FileIO(tmp_path / "file", "w") as file:
        write_line(file, "first")
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            with pytest.raises(OutputError), writing("file", OutputError):
                write_line(file, "x" * 200)
            write_line(file, "last")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "file").read_text() == "first\nlast\n"


def test_a_link_stays_a_link_and_a_mode_a_mode(tmp_path):
    file, link = tmp_path / "file", tmp_path / "folder" / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.parent.mkdir()
    link.symlink_to("../file")
    write_whole(link, "new")
    assert link.is_symlink()
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o640)
    file.unlink()
    write_whole(link, "newer")
    assert file.read_text() == "newer"
    assert [path.name for path in link.parent.iterdir()] == ["link"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_device_stays_a_device(tmp_path):
    for device, fails in (("/dev/null", nullcontext()), ("/dev/full", pytest.raises(OutputError))):
        link = tmp_path / Path(device).name
        link.symlink_to(device)
        with fails, writing(link, OutputError):
            write_whole(link, "text")
        assert stat.S_ISCHR(os.stat(device).st_mode)
        assert link.is_symlink()


def test_a_pipe_is_written_to_and_one_that_nobody_reads_is_refused_at_once(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OutputError, match=str(fifo)), writing(fifo, OutputError):
        write_whole(fifo, "text")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(fifo, "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_folder_is_no_file(tmp_path):
    for path in (tmp_path, "", "/"):
        with pytest.raises(OSError, match="directory"):
            write_whole(path, "text")
