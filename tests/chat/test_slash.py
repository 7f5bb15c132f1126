"""What can be typed in a chat besides questions: /commands, and @file."""

import pytest

from entropix_mlx.chat.attachments import matching, with_files
from entropix_mlx.chat.slash import COMMANDS, completions, listing, parse, shared
from entropix_mlx.errors import SessionError


def test_a_line_is_a_question_or_a_command():
    assert parse("What is /tmp?") is None
    assert parse("/fork 1 2") == ("/fork", "1 2")
    assert parse("/edit  two\nlines ") == ("/edit", "two\nlines")
    assert parse("/new") == ("/new", "")
    for unknown in ("/frok", "/"):
        with pytest.raises(SessionError):
            parse(unknown)


def test_some_commands_are_only_for_the_screen():
    assert "/chats" not in listing(shared())
    with pytest.raises(SessionError):
        parse("/chats", shared())
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)


def test_completions():
    assert [command.name for command in completions("/re")] == ["/regenerate", "/rename"]
    assert completions("re") == completions("/re x") == []


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


def test_paths_that_may_be_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.md").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "new.txt").touch()
    assert matching("n") == ["new.txt", "notes/"]
    assert matching("notes/") == ["notes/one.md"]
    assert matching("") == ["new.txt", "notes/"]
    assert matching(".") == [".hidden"]
    assert matching("absent/x") == []
