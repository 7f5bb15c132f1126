"""What a prompt asks for: its last turn decides."""

import pytest

from entropix_mlx import stream_generate
from entropix_mlx.answer.interventions.prose import asks_for
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Origin

WORDS = ["story", "e-mail", "ein brief", "note to"]
ALWAYS = {
    "thresholds": {"low_entropy": 0, "think_min_entropy": 0, "think_max_varentropy": 1e9},
    "think": {"not_for": ["story"], "watch": 0, "place": "word"},
}


def chat(*turns):
    """Return the text of some turns, in the manner of most chat templates."""
    return "".join(f"<s>{role}\n{text}</s>\n" for role, text in turns) + "<s>assistant\n"


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("Tell me a Story about a cat.", True),
        ("Draft an e-mail to her", True),
        ("the history of stories", False),
        ("Explain in brief what a note is.", False),
        ("Ein Brief an Oma", True),
        ("Write a note\nto her", True),
        ("", False),
        (chat(("system", "You tell stories."), ("user", "A story!")), True),
        (chat(("user", "A story!"), ("assistant", "Once."), ("user", "Why?")), False),
        (chat(("user", "Why?"), ("assistant", "Read the story."), ("user", "Write one.")), False),
    ],
)
def test_the_last_turn_says_what_is_asked_for(byte_tokenizer, prompt, asked):
    tokens = byte_tokenizer.encode(prompt, add_special_tokens=False)
    assert asks_for(WORDS, byte_tokenizer, tokens) is asked
    assert not asks_for([], byte_tokenizer, tokens)


@pytest.mark.parametrize(("word", "allowed"), [("ocean", True), ("story", False)])
def test_no_thought_stands_in_a_text_with_a_voice_of_its_own(
    tiny_model, word_tokenizer, word, allowed
):
    profile = Profile.load().replace(ALWAYS)
    prompt = word_tokenizer.encode(chat(("user", f"Tell me of the {word}.")))
    options = {"profile": profile, "max_tokens": 12, "seed": 1}
    steps = stream_generate(tiny_model, word_tokenizer, prompt, **options)
    assert any(step.origin is Origin.INSERTED for step in steps) is allowed
