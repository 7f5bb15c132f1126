"""Reading files of strangers: their kind and their size are checked first."""

import os
from pathlib import Path

import pytest

from entropix_mlx import cli, limits
from entropix_mlx.errors import PromptError


def test_a_file_is_read_up_to_its_limit(tmp_path):
    file = tmp_path / "file"
    file.write_text("é" * 5, encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    assert limits.read_text(tmp_path / "link", 10) == limits.read_text(file, 10) == "é" * 5
    with pytest.raises(OSError, match="9 bytes"):
        limits.read_text(file, 9)


def test_what_waits_or_never_ends_is_refused_at_once(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file"):
            limits.read_bytes(path, 10)
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        limits.read_bytes(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        limits.read_bytes(tmp_path / "absent", 10)


def test_what_the_shell_has_opened_is_read_up_to_its_limit():
    reading, writing = os.pipe()
    os.write(writing, "\ufeffé\n".encode())
    os.close(writing)
    assert limits.read_named(f"/dev/fd/{reading}", 10, PromptError) == "é\n"
    os.close(reading)
    with open("/dev/zero", "rb") as endless, pytest.raises(PromptError, match="10 bytes"):
        limits.read_named(f"/dev/fd/{endless.fileno()}", 10, PromptError)


def test_a_text_that_is_not_utf8_is_reported_with_its_line(tmp_path):
    (tmp_path / "file").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(PromptError, match="file, line 2"):
        limits.read_named(tmp_path / "file", 100, PromptError)


@pytest.mark.parametrize("depth", [300, 10**5])
@pytest.mark.parametrize("option", ["--set=a={}", "--arm=x: a={}"])
def test_values_that_are_nested_too_deeply(option, depth, capsys):
    command = ["generate", "-p", "x"] if "set" in option else ["eval"]
    nested = "[" * depth + "]" * depth
    assert cli.main([*command, "--model", "/absent", option.format(nested)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
