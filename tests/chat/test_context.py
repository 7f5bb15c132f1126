"""What fits into a context: which turns are dropped, and when; and how a conversation is edited."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.chat.local import Context
from entropix_mlx.errors import ContextLengthError
from tests.conftest import make_byte_tokenizer

LENGTH = 400
TOKENIZER = make_byte_tokenizer()


def conversation_of(lengths, dropped=0, system_prompt=None):
    turns = [Turn("x" * length, [Reply(0)]) for length in lengths]
    return Conversation(system_prompt, turns, dropped)


def tokens_of(conversation, dropped):
    return len(
        TOKENIZER.apply_chat_template(
            Conversation(conversation.system_prompt, conversation.turns, dropped).prompt_messages,
            add_generation_prompt=True,
        )
    )


@given(
    st.lists(st.integers(1, 250), min_size=1, max_size=8),
    st.integers(-1, 300).filter(bool),
    st.integers(0, 9),
)
@example([230, 60], -1, 0)  # no more than the answer's room is lacking
def test_turns_are_dropped_only_if_they_must_and_then_enough_of_them(lengths, most, dropped):
    conversation = conversation_of(lengths, dropped, "Be kind.")
    last = len(lengths) - 1
    before = min(dropped, last)
    prompt = Context(TOKENIZER, LENGTH).fit(conversation, most)
    assert len(prompt) == tokens_of(conversation, conversation.dropped) < LENGTH
    assert before <= conversation.dropped <= last
    room = LENGTH / 4 if most < 0 else min(LENGTH / 4, most)
    if tokens_of(conversation, before) <= LENGTH - room:
        assert conversation.dropped == before
    elif conversation.dropped < last:
        assert len(prompt) <= LENGTH / 2 < tokens_of(conversation, conversation.dropped - 1)


def test_a_last_question_too_long_for_the_context_is_refused():
    with pytest.raises(ContextLengthError):
        Context(TOKENIZER, LENGTH).fit(conversation_of([10, 500]), 20)
    context, asked = Context(TOKENIZER, LENGTH), conversation_of([10])
    room = LENGTH - len(context.resumed(asked, []))
    assert len(context.resumed(asked, [65] * (room - 1))) == LENGTH - 1
    with pytest.raises(ContextLengthError):
        context.resumed(asked, [65] * room)


def test_an_answer_is_resumed_after_its_question():
    conversation = conversation_of([10, 20])
    context = Context(TOKENIZER, LENGTH)
    assert context.resumed(conversation, [65, 66]) == [*context.fit(conversation, 5), 65, 66]


def test_asking_leaves_the_conversation_as_it_is():
    conversation = conversation_of([1, 2, 3], dropped=1)
    added = conversation.asking("new")
    replaced = conversation.asking("new", 2)
    first = conversation.asking("new", 0)
    assert [turn.question for turn in added.turns] == ["x", "xx", "xxx", "new"]
    assert [turn.question for turn in replaced.turns] == ["x", "xx", "new"]
    assert [turn.question for turn in first.turns] == ["new"]
    assert (added.dropped, replaced.dropped, first.dropped) == (1, 1, 0)
    assert conversation == conversation_of([1, 2, 3], dropped=1)
