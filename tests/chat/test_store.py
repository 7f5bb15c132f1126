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


def run(store, chat, program, **options):
    """Run a program that has the store and the id of a chat as `store` and `chat`."""
    begun = (
        "import sys; from pathlib import Path; from entropix_mlx.chat.conversation import Turn;"
        "from entropix_mlx.chat.store import Store; store, chat = Store(Path(sys.argv[1])),"
        " sys.argv[2]\n"
    )
    command = [sys.executable, "-c", begun + program, str(store.file), chat.id]
    return subprocess.Popen(command, **options)


def test_a_crash_is_reported_once(store):
    chat, other = talk("Cats?"), talk("Dogs?")
    for each in (chat, other):
        store.save(each)
    again = "store.open(chat); store.save(store.load(chat))"  # saving does not close it
    assert run(store, chat, again).wait() == 0
    store.open(other.id)
    assert store.crashed() == [chat.id], "this program runs"
    assert store.crashed() == []
    store.close()


def test_what_another_program_wrote_meanwhile_is_replaced_as_a_whole(store):
    chat = talk("Cats?", "Dogs?", "Ships?")
    store.save(chat)
    other = Store(store.file)
    changed = other.load(chat.id)
    changed.turns[0].question = "Birds?"
    other.save(changed)
    chat.turns[2].answers[0].seed = 5
    del chat.turns[1]
    store.save(chat)
    assert store.load(chat.id) == chat
    assert (store.cards("birds"), store.cards("ships")[0].turns) == ([], 2)


@pytest.mark.slow
@pytest.mark.parametrize("saved", [1, 7, 40])
def test_a_program_that_is_killed_loses_nothing_that_was_saved(store, saved):
    chat = talk("0")
    store.save(chat)
    grow = (
        "whole = store.load(chat)\nwhile True:\n    store.open(chat)\n"
        "    whole.turns.append(Turn(str(len(whole.turns)))); store.save(whole)\n"
        "    print(len(whole.turns), flush=True)"
    )
    with run(store, chat, grow, stdout=subprocess.PIPE) as program:
        for _ in range(saved):
            program.stdout.readline()
        program.kill()
        last = int((program.stdout.read().split() or [saved + 1])[-1])
    turns = store.load(chat.id).turns
    assert [turn.question for turn in turns] == [str(number) for number in range(len(turns))]
    assert len(turns) - last in (0, 1)
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
