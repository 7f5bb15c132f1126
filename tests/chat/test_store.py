"""Chats that are saved automatically, and turns that come back with their answer."""

import subprocess
import sys

import pytest

from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.chat.store import Store
from entropix_mlx.errors import SessionError


def talk(*questions):
    return Conversation(turns=[Turn(text, [Reply(1, [])]) for text in questions])


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "chats")


def test_saved_chats_are_listed_found_and_read_again(store):
    assert store.cards() == []
    first, second = talk("Cats?\nReally", "And dogs?"), talk("Ships?")
    store.save(first)
    store.save(second)
    assert [card.name for card in store.cards()] == ["Ships?", "Cats?"]
    assert [card.id for card in store.cards("DOGS cats")] == [first.id]
    assert store.cards("dogs ships") == []
    again = store.load(first.id)
    assert (again, again.id) == (first, first.id)


def test_a_chat_is_renamed_and_deleted(store):
    chat = talk("Cats?")
    store.save(chat)
    store.rename(chat.id, "About cats")
    assert store.cards("about")[0].name == "About cats"
    assert store.load(chat.id).title == "About cats"
    store.delete(chat.id)
    store.delete(chat.id)
    assert store.cards() == []
    with pytest.raises(SessionError):
        store.rename(chat.id, "x")


@pytest.mark.parametrize("chat", ["../x", "absent", ""])
def test_a_chat_that_is_not_there_is_an_error(store, chat):
    with pytest.raises(SessionError):
        store.load(chat)


def test_a_crash_is_reported_once(store):
    chat, other = talk("Cats?"), talk("Dogs?")
    for each in (chat, other):
        store.save(each)
    program = "import sys; from pathlib import Path; from entropix_mlx.chat.store import Store; "
    run = [sys.executable, "-c", program + "Store(Path(sys.argv[1])).open(sys.argv[2])"]
    subprocess.run([*run, str(store.file), chat.id], check=True)
    store.open(other.id)
    assert store.crashed() == [chat.id], "this program runs"
    assert store.crashed() == []
    store.close()


def test_a_chat_that_is_saved_while_it_is_open_stays_open(store):
    chat = talk("Cats?")
    store.save(chat)
    program = "import sys; from pathlib import Path; from entropix_mlx.chat.store import Store; "
    again = "s = Store(Path(sys.argv[1])); s.open(sys.argv[2]); s.save(s.load(sys.argv[2]))"
    run = [sys.executable, "-c", program + again]
    subprocess.run([*run, str(store.file), chat.id], check=True)
    assert store.crashed() == [chat.id]


@pytest.mark.parametrize("content", [None, b"no database" * 100])
def test_a_file_that_cannot_be_used_is_a_message(tmp_path, content):
    file = tmp_path / "chats"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    store = Store(file)
    for action in (lambda: store.save(talk("Cats?")), lambda: store.open("x")):
        with pytest.raises(SessionError):
            action()
    assert store.cards() == store.crashed() == []


def test_turns_stay_with_the_answer_that_was_left(tmp_path):
    chat = talk("one", "two", "three")
    first, later = chat.turns[0], chat.turns[1:]
    first.answers.append(Reply(2, []))
    chat.dropped = 1
    chat.select(1, turn=0)
    assert (chat.turns, chat.dropped) == ([first], 0)
    chat.turns.append(Turn("other", [Reply(3, [])]))
    chat.save(tmp_path / "chat.json")
    again = Conversation.load(tmp_path / "chat.json")
    assert again == chat
    again.select(0, turn=0)
    assert [turn.question for turn in again.turns] == ["one", "two", "three"]
    again.select(1, turn=0)
    assert [turn.question for turn in again.turns] == ["one", "other"]
    assert chat.turns[0].answers[0].following == later
    for answer, turn in ((0, 9), (5, 0)):
        with pytest.raises(SessionError):
            chat.select(answer, turn)
