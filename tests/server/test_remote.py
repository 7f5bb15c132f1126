"""A chat whose model is behind a server: the same steps as with the model in this process."""

from dataclasses import replace

import pytest

from entropix_mlx import Session, Settings, cli
from entropix_mlx.chat import events
from entropix_mlx.chat.events import CancelToken, UserMessage
from entropix_mlx.chat.remote import RemoteSource, ServerError
from entropix_mlx.chat.session import ChatSession
from entropix_mlx.chat.thread import ChatThread
from entropix_mlx.errors import SessionError
from tests.answer.test_forks import always_branch
from tests.chat.test_thread import Heard, ask

SETTINGS = Settings(max_tokens=6, seed=3, top_logprobs=4, profile=always_branch(min_gap=9))


@pytest.fixture
def remote(url):
    source = RemoteSource(url, "key")
    source.open()
    return ChatSession(source, SETTINGS, "Be brief.")


@pytest.fixture
def local(tiny_model, byte_tokenizer):
    byte_tokenizer._eos_token_ids = set()
    yield Session(tiny_model, byte_tokenizer, SETTINGS, system_prompt="Be brief.")
    byte_tokenizer._eos_token_ids = {257}


def tokens(conversation):
    return [
        [[step.token for step in answer.steps] for answer in turn.answers]
        for turn in conversation.turns
    ]


def test_every_way_to_an_answer_is_that_of_a_session(remote, local):
    for session in (remote, local):
        assert len(list(session.send("Hello"))) == 6
        assert len(list(session.send("And now?"))) == 6
        list(session.regenerate())
        list(session.fork(2, session.conversation.last.answer.steps[2].top_logprobs[1].token))
        list(session.fork(1, [70, 71]))
        session.select(0)
        list(session.send("Once more", 1))
    assert tokens(remote.conversation) == tokens(local.conversation)
    ours, theirs = remote.conversation.last.answer, local.conversation.last.answer
    assert [step.index for step in ours.steps] == list(range(len(ours.steps)))
    assert [step.strategy for step in ours.steps] == [step.strategy for step in theirs.steps]
    assert ours.finish_reason == theirs.finish_reason == "length"
    assert ours.model == theirs.model
    assert remote.conversation.context_used == local.conversation.context_used


def test_of_several_answers_the_server_sends_the_chosen_one_and_how_they_stand(remote):
    standings = []
    remote.on_answers = standings.append
    remote.settings = replace(SETTINGS, answers=3)
    assert len(list(remote.send("Hello"))) == 6
    (standing,) = standings
    assert standing.drawn == 3
    assert 1 <= standing.complete <= 3
    assert 0 < standing.confidence <= 1


def test_a_changed_profile_goes_with_the_question(remote, local):
    for session in (remote, local):
        session.settings = replace(
            SETTINGS, profile="reference", changes={"thresholds": {"low_entropy": 99.0}}
        )
        session.settings = replace(session.settings, sampler="entropix", temperature=0.5)
        list(session.send("Hello"))
    assert tokens(remote.conversation) == tokens(local.conversation)


def test_what_the_server_refuses_changes_nothing(remote):
    dropped = []
    remote.on_drop = dropped.append
    list(remote.send("Hello"))
    with pytest.raises(ServerError) as refused:
        remote.send("x" * 400)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(SessionError):
        list(remote.fork(99, 5))
    assert len(remote.conversation.turns) == 1
    assert not dropped
    for n in range(8):  # old turns leave the context
        list(remote.send(f"What about number {n}?"))
    assert 0 < remote.conversation.dropped < 9
    assert dropped[-1] == remote.conversation.dropped


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "ftp://x", "nonsense", "http://[::"])
def test_an_address_without_a_server(address):
    with pytest.raises(ServerError):
        RemoteSource(address).open()


def test_a_missing_key_is_named(url):
    with pytest.raises(ServerError) as refused:
        RemoteSource(f"{url}/v1").open()
    assert refused.value.code == "invalid_api_key"


def test_the_thread_of_the_terminal_ui(url):
    heard = Heard()
    session = ChatSession(RemoteSource(url, "key"), replace(SETTINGS, max_tokens=150))
    thread = ChatThread(session, heard)
    thread.start()
    assert heard.until(events.Loaded).context_length == 256
    cancel = CancelToken()
    ask(thread, UserMessage("Hello"), cancel)
    heard.until(events.StepsArrived)
    cancel.set()
    assert heard.until(events.AnswerEnded, cancel=cancel).error is None
    last = [e for e in heard.events if isinstance(e, events.ConversationChanged)][-1]
    (turn,) = last.conversation.turns
    assert 0 < len(turn.answer.steps) < 150
    thread.list_models()
    assert heard.until(events.ModelsListed).error
    thread.switch("another", CancelToken())
    heard.until(events.Loaded)
    assert heard.until(events.AnswerEnded).error
    thread.stop()
    thread.join()
    assert not thread.alive


@pytest.mark.parametrize("more", [["--ask"], ["--trace", "x"], ["--model", "x"]])
def test_options_that_do_not_go_with_a_server(more, capsys, monkeypatch):
    monkeypatch.setattr("entropix_mlx.commands.shared.output.check_screen", lambda hint: None)
    monkeypatch.setattr("entropix_mlx.tui.terminal.require_full_screen", lambda hint: None)
    assert cli.main(["chat", "--server", "http://127.0.0.1:9", *more]) == 2
    assert "--server" in capsys.readouterr().err
