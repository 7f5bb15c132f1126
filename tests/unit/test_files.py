"""Paths and files: what cannot be written is said in one way."""

import errno
import os
from pathlib import Path

import pytest

from entropix_mlx.errors import OutputError
from entropix_mlx.files import expanded, write_whole, writing


def test_a_home_folder_is_spelt_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert expanded("~/file", OutputError) == Path("/home/somebody/file")
    assert expanded("a/~/file", OutputError) == Path("a/~/file")
    with pytest.raises(OutputError, match="no home folder is known for ~nobody-at-all/x: write"):
        expanded("~nobody-at-all/x", OutputError)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EACCES, "cannot write some/file: Permission denied"),
        (errno.ENOSPC, "cannot write some/file: the disk is full; make room"),
    ],
)
def test_what_cannot_be_written_is_said(number, message):
    with pytest.raises(OutputError, match=message), writing("some/file", OutputError):
        raise OSError(number, os.strerror(number))


def test_a_file_is_written_whole(tmp_path):
    file = tmp_path / "file"
    write_whole(file, "é\n")
    assert file.read_text("utf-8") == "é\n"
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "\ud800")
    assert file.read_text("utf-8") == "é\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
