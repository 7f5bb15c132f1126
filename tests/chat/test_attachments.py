"""@file in a question."""

import pytest

from entropix_mlx.chat.attachments import with_files
from entropix_mlx.errors import SessionError


def test_a_file_becomes_part_of_the_question(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = '```'\n")
    question = "What does @a.py do? And @someone, @a.py?"
    assert with_files(question) == f"{question}\n\na.py:\n````\nx = '```'\n````"
    assert with_files("me@a.py") == "me@a.py"


@pytest.mark.parametrize(
    "word",
    ["absent.py", "no/such", "b.bin", ".", "~nobody-at-all/x", "x" * 5000 + ".py", "big.txt"],
)
def test_what_cannot_be_read_is_refused(tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe")
    (tmp_path / "big.txt").write_text("x" * 1_000_001)
    with pytest.raises(SessionError):
        with_files(f"see @{word}")
