"""A queue of prompts that begin alike: every answer is that of its own prompt, whoever shares what
is cached, and with how many answers."""

import pytest

from entropix_mlx import Settings, batch_generate, stream_generate
from entropix_mlx.api.generate import stream_answers
from entropix_mlx.models.base import LanguageModel
from entropix_mlx.step import first_divergence
from tests.architectures import make
from tests.conftest import make_tiny_model

pytestmark = pytest.mark.slow

TAPPED = ("gemma3_text", "mixtral", "granite", "falcon_h1")
"""Sliding windows, experts, plain heads, and recurrent layers beside attention."""
BEGINNING = "Q: What is the young of a dog called?\nA: puppy\n\nQ: What is the young of a "
TEXTS = [
    *(f"{BEGINNING}{animal} called?\nA:" for animal in ("cat", "cow", "hen", "goat")),
    *(f"{BEGINNING}{animal}" for animal in ("cat", "cow")),  # the ends of them differ
    *(f"Which currency number {number} do people use in a country far away?" for number in "012"),
]
PROMPTS = [list(text.encode()) for text in TEXTS]
GREEDY = Settings(seed=1, max_tokens=8, sampler="greedy")
UNSURE = {"answers": {"threshold": 0.0, "count": 3}}


@pytest.fixture(scope="module")
def models():
    """Return a function from an architecture to a tiny random model of it."""
    made = {"own port": make_tiny_model()}

    def model_of(architecture):
        if architecture not in made:
            made[architecture] = LanguageModel(*make(architecture))
        return made[architecture]

    return model_of


@pytest.fixture(scope="module")
def known():
    """By model: the answer to each prompt alone."""
    return {}


@pytest.fixture
def check_own(endless, known):
    """Return a check that answers, by the indices of their prompts, are those of the prompts."""

    def check(model, found):
        if id(model) not in known:
            known[id(model)] = [list(stream_generate(model, endless, p, GREEDY)) for p in PROMPTS]
        alone = known[id(model)]
        assert len({tuple(step.token for step in steps) for steps in alone}) > len(PROMPTS) / 2
        for index, steps in found:
            at = first_divergence(steps, alone[index])
            assert at is None, f"prompt {index} is answered otherwise from token {at} on"
            logprobs = [step.logprob for step in alone[index]]
            assert [step.logprob for step in steps] == pytest.approx(logprobs, abs=1e-3)

    return check


@pytest.mark.parametrize("architecture", ["own port", *TAPPED])
@pytest.mark.parametrize("answers", [1, 3, "auto"])
@pytest.mark.parametrize("batch", [2, 6])
def test_the_first_answer_to_each_prompt_of_a_queue(
    models, endless, check_own, architecture, answers, batch
):
    model = models(architecture)
    queue = batch_generate(
        model,
        endless,
        PROMPTS,
        GREEDY,
        batch=batch,
        answers=answers,
        changes=UNSURE,
    )
    queue.finish()
    assert not any(answer.error for answer in queue.answers)
    firsts = [
        answer.steps if answer.several is None else answer.several.candidates[0].steps
        for answer in queue.answers
    ]
    check_own(model, enumerate(firsts))


@pytest.mark.parametrize("architecture", ["own port", *TAPPED])
def test_several_answers_to_a_prompt_each_and_prompts_twice(
    models, endless, check_own, architecture
):
    model = models(architecture)
    queue = batch_generate(model, endless, PROMPTS * 2, GREEDY, n=2, batch=3)
    queue.finish()
    check_own(
        model, ((number // 2 % len(PROMPTS), a.steps) for number, a in enumerate(queue.answers))
    )


@pytest.mark.parametrize("architecture", ["own port", *TAPPED])
@pytest.mark.parametrize("answers", [3, "auto"])
def test_the_first_of_several_answers_to_one_prompt(
    models, endless, check_own, architecture, answers
):
    model = models(architecture)
    for index, prompt in enumerate(PROMPTS):
        several, steps = stream_answers(
            model, endless, prompt, GREEDY, answers=answers, changes=UNSURE
        )
        for _ in steps:
            pass
        check_own(model, [(index, several.candidates[0].steps)])
