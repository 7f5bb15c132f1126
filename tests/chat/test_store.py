"""Chats that are saved automatically, and turns that come back with their answer."""

import os

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
    os.utime(store.folder / f"{first.id}.json", (1, 1))
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
    assert not list(store.folder.glob("*"))
    with pytest.raises(SessionError):
        store.rename(chat.id, "x")


@pytest.mark.parametrize("damage", ["", "{", '{"name": 3}', None])
def test_a_card_is_made_again_and_a_damaged_chat_is_passed_over(store, damage):
    chat = talk("Cats?")
    store.save(chat)
    (store.folder / "damaged.json").write_text("{")
    card = store.folder / f"{chat.id}.card"
    if damage is None:
        card.unlink()
    else:
        card.write_text(damage)
    assert [(found.name, found.turns) for found in store.cards()] == [("Cats?", 1)]
    assert "Cats?" in card.read_text()


@pytest.mark.parametrize("chat", ["../x", "a/b", "", "."])
def test_an_id_is_no_path(store, chat):
    with pytest.raises(SessionError):
        store.load(chat)


def test_a_crash_is_reported_once(store):
    chat = talk("Cats?")
    store.save(chat)
    store.open(chat.id)
    assert store.crashed() == [], "this program runs"
    marks, dead = store.folder / "open", 2**22  # the largest process id
    (marks / str(os.getpid())).rename(marks / str(dead + 1))
    (marks / str(dead + 2)).write_text("../x")
    (marks / str(dead + 3)).write_text("absent")
    assert store.crashed() == [chat.id]
    assert store.crashed() == []
    store.open(chat.id)
    store.close()
    assert not list(marks.iterdir())


def test_a_folder_that_cannot_be_written_is_a_message(tmp_path):
    (tmp_path / "chats").touch()
    store = Store(tmp_path / "chats")
    for action in (lambda: store.save(talk("Cats?")), lambda: store.open("x")):
        with pytest.raises(SessionError):
            action()


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
