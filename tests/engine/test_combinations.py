"""Whatever is combined, an answer is that of its own prompt alone: one table.

What is asked for, times the kinds of models, times who shares the passes. The prompts of a queue
differ in one token, so that an answer to another one of them would not be noticed otherwise.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from entropix_mlx import Session, Settings, batch_generate, stream_generate
from entropix_mlx.api.prompts import conversation_prompt
from entropix_mlx.api.runner import Runner
from entropix_mlx.constraints.constraint import Constraint
from entropix_mlx.engine.prompts import PromptCache
from entropix_mlx.models.base import LanguageModel
from tests.answer.test_forks import always_branch
from tests.architectures import make
from tests.conftest import make_tiny_model
from tests.steps import first_divergence

KINDS = {
    "own port": None,
    "full attention": "granite",
    "sliding window": "gemma3_text",
    "recurrent": "falcon_h1",
    "experts": "mixtral",
}
PROMPTS = [list(f"Which currency number {n} do people use?".encode()) for n in "0123"]
PLAIN = Settings(seed=1, max_tokens=8, sampler="greedy")
ASKED = {
    "plain": {},
    "several answers": {"answers": 3},
    "answers if unsure": {
        "answers": "auto",
        "changes": {"answers": {"count": 3}},
        "budget": 8,
    },
    "forks": {"sampler": "entropix", "profile": always_branch(min_gap=3, width=3, depth=3)},
    "constraint": {"constraint": Constraint("regex", "[a-f]{3,20}(-[0-9]{2,4})*")},
}
SHARED = {"alone": 1, "batch": 4, "queue": 2}


@pytest.fixture(scope="module")
def models():
    return {
        kind: LanguageModel(*make(name)) if name else make_tiny_model(max_position_embeddings=512)
        for kind, name in KINDS.items()
    }


@pytest.fixture(scope="module")
def known():
    """By kind of model and what is asked for: the answer to each prompt alone."""
    return {}


@pytest.fixture
def check(models, byte_tokenizer, known):
    """Return a check that answers to all prompts, in order, are those that they get alone."""

    def check(kind, asked, answers):
        if (kind, asked) not in known:
            options = {"answers": 1} if "answers" in ASKED[asked] else {}
            known[kind, asked] = [
                list(
                    stream_generate(
                        models[kind], byte_tokenizer, prompt, PLAIN, **ASKED[asked] | options
                    )
                )
                for prompt in PROMPTS
            ]
        for steps, expected in zip(answers, known[kind, asked], strict=True):
            assert first_divergence(steps, expected) is None
            logprobs = [step.logprob for step in expected]
            assert [step.logprob for step in steps] == pytest.approx(logprobs, abs=1e-3)

    return check


def in_a_thread(function):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def first_of(answer):
    assert answer.error is None
    return answer.steps if answer.several is None else answer.several.candidates[0].steps


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("kind", KINDS)
def test_each_prompt_gets_its_own_answer(models, byte_tokenizer, check, kind, asked, shared):
    options = {"batch": SHARED[shared], **ASKED[asked]}
    answers = batch_generate(models[kind], byte_tokenizer, PROMPTS, PLAIN, **options).finish()
    check(kind, asked, map(first_of, answers))


@pytest.mark.parametrize("kind", KINDS)
def test_the_prompts_were_told_apart(models, byte_tokenizer, check, known, kind):
    answers = batch_generate(models[kind], byte_tokenizer, PROMPTS, PLAIN).finish()
    check(kind, "plain", map(first_of, answers))
    assert len({tuple(step.token for step in steps) for steps in known[kind, "plain"]}) > 1


@pytest.mark.parametrize(
    ("size", "asked"), [(1, "plain"), (2, "plain"), (4, "plain"), (2, "forks"), (4, "constraint")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_servers_answers_from_its_prompt_cache(models, byte_tokenizer, check, kind, size, asked):
    """Each prompt is asked twice with `n` of 2, and all once more when their texts are cached."""
    cache = PromptCache(2**28)
    resolved = replace(PLAIN, **ASKED[asked]).resolved(models[kind].config)
    for _ in range(2):
        with Runner(models[kind], byte_tokenizer, size=size, cache=cache) as runner:
            added = [runner.add(prompt, resolved) for prompt in PROMPTS for _ in range(2)]
            steps = {sequence: [] for sequence in added}
            while not runner.batch.idle:
                for sequence, step in runner.advance():
                    steps[sequence].append(step)
        found = list(steps.values())
        check(kind, asked, found[::2])
        check(kind, asked, found[1::2])
    assert any(sequence.cached for sequence in added)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_goes_on_in_another_thread(models, byte_tokenizer, check, kind):
    """MLX's streams belong to a thread: what was queued in one must be computed when it ends."""
    found = []
    for prompt in PROMPTS:
        steps = stream_generate(models[kind], byte_tokenizer, prompt, PLAIN)
        found.append([])
        while (step := in_a_thread(lambda steps=steps: next(steps, None))) is not None:
            found[-1].append(step)
    check(kind, "plain", found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_goes_on_from_what_is_cached(models, byte_tokenizer, kind):
    session = Session(models[kind], byte_tokenizer, PLAIN)
    for text in ("Which number 0?", "And which number 1?"):
        steps = list(session.send(text))
        before = session.conversation.messages[:-1]
        prompt = conversation_prompt(byte_tokenizer, before)
        alone = list(stream_generate(models[kind], byte_tokenizer, prompt, PLAIN))
        assert first_divergence(steps, alone) is None
    assert session.source.cached_tokens
