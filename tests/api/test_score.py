"""Measuring a text that is given, against a generation that is forced to write it."""

import threading

import mlx.core as mx
import pytest

from entropix_mlx import SAMPLERS, chat_prompt, score
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.api.score import stream_score, windows
from entropix_mlx.errors import ContextLengthError, NonFiniteLogitsError, PromptError
from entropix_mlx.settings import Settings
from entropix_mlx.step import Origin
from tests.conftest import PROMPT, make_tiny_model, run_answer

pytestmark = pytest.mark.slow

TEXT = list(b" jumps over the lazy dog, and jumps.")
CLOSE = 1e-3


def forced(model, tokenizer, settings, tokens=TEXT, prompt=PROMPT):
    """Return the steps of a generation that was forced to write some tokens."""
    resolved = settings.resolved(model.config)
    return run_answer(model, tokenizer, prompt, resolved, forced=tokens)[: len(tokens)]


def close(one, other):
    numbers = [*one.metrics, one.logprob, one.position_score, one.temperature, one.top_p, one.min_p]
    others = [*other.metrics, other.logprob, other.position_score]
    others += [other.temperature, other.top_p, other.min_p]
    return numbers == pytest.approx(others, rel=CLOSE, abs=CLOSE)


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_the_measurements_are_those_of_a_generation_that_writes_the_text(
    tiny_model, byte_tokenizer, sampler
):
    settings = Settings(len(TEXT), sampler, seed=3, top_logprobs=3)
    written = forced(tiny_model, byte_tokenizer, settings)
    read = score(tiny_model, byte_tokenizer, TEXT, settings, after=PROMPT)
    assert [step.token for step in read] == TEXT
    assert [step.text for step in read] == [step.text for step in written]
    for one, other in zip(read, written, strict=True):
        assert close(one, other), one.index
        assert one.strategy.sampled() == other.strategy.sampled()
        assert one.top_k == other.top_k
        tops = [[a.token for a in step.top_logprobs] for step in (one, other)]
        assert tops[0] == tops[1]


def test_all_layers_can_be_measured(tiny_model, byte_tokenizer):
    settings = Settings(len(TEXT), seed=3, attention_layers="all")
    written = forced(tiny_model, byte_tokenizer, settings)
    read = score(tiny_model, byte_tokenizer, TEXT, settings, after=PROMPT)
    assert all(close(one, other) for one, other in zip(read, written, strict=True))
    last = score(tiny_model, byte_tokenizer, TEXT, seed=3, after=PROMPT)
    assert not close(read[9], last[9])


def test_neither_blocks_nor_chunks_change_a_measurement(tiny_model, byte_tokenizer, monkeypatch):
    whole = score(tiny_model, byte_tokenizer, TEXT, seed=0)
    monkeypatch.setattr("entropix_mlx.api.score.prefill_chunk", lambda: 7)
    monkeypatch.setattr("entropix_mlx.api.score.LOGITS_AT_ONCE", 3 * 258)
    monkeypatch.setattr("entropix_mlx.api.score.SCORES_AT_ONCE", 150)
    parts = score(tiny_model, byte_tokenizer, TEXT, seed=0)
    assert all(close(one, other) for one, other in zip(whole, parts, strict=True))


def test_log_probabilities_are_the_models(tiny_model, byte_tokenizer):
    steps = score(tiny_model, byte_tokenizer, TEXT)
    tokens = mx.array([[256, *TEXT]])
    logits = tiny_model(tokens, tiny_model.make_cache()).logits[0, :-1]
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    expected = mx.take_along_axis(logprobs, mx.array(TEXT)[:, None], axis=-1)[:, 0]
    assert [step.logprob for step in steps] == pytest.approx(expected.tolist(), abs=CLOSE)


def test_the_origin_of_the_steps_is_read(tiny_model, byte_tokenizer):
    steps = score(tiny_model, byte_tokenizer, "naïve 💥\n")
    assert "".join(step.text for step in steps) == "naïve 💥\n"
    assert {step.origin for step in steps} == {Origin.READ}
    assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + ["read"]
    assert [step.index for step in steps] == list(range(len(steps)))


def test_a_text_may_hold_the_token_that_ends_answers(tiny_model, byte_tokenizer):
    tokens = byte_tokenizer.encode("H</s>I")
    steps = score(tiny_model, byte_tokenizer, tokens)
    assert [step.token for step in steps] == tokens
    assert tokens[1] == 257
    assert "".join(step.text for step in steps) == "H</s>I"


def test_a_token_that_begins_the_text_is_not_measured(tiny_model, byte_tokenizer):
    one, other = (score(tiny_model, byte_tokenizer, ids, seed=0) for ids in (TEXT, [256, *TEXT]))
    assert one == other


def test_a_text_can_be_read_as_an_answer(tiny_model, byte_tokenizer):
    after = chat_prompt(byte_tokenizer, "Why?")
    one = score(tiny_model, byte_tokenizer, "Because.", after=after, seed=0)
    other = score(
        tiny_model, byte_tokenizer, byte_tokenizer.encode("Because."), after=after, seed=0
    )
    assert one == other
    assert one[0].logprob != score(tiny_model, byte_tokenizer, "Because.")[0].logprob


@pytest.mark.parametrize("length", [1, 5, 8, 9, 12, 13, 30])
def test_pieces_measure_every_token_once(length):
    pieces = list(windows(length, 1, 8))
    measured = [token for _, first, end in pieces for token in range(first, end)]
    assert measured == list(range(1, length))
    assert all(0 <= begin < first and end - begin <= 8 for begin, first, end in pieces[1:])


def test_a_text_longer_than_the_context_is_refused_or_split(tiny_model, byte_tokenizer):
    tokens = TEXT * 10
    with pytest.raises(ContextLengthError, match=r"360 tokens.*256"):
        score(tiny_model, byte_tokenizer, tokens)
    steps = score(tiny_model, byte_tokenizer, tokens, seed=0, split=True)
    assert [step.token for step in steps] == tokens
    first = score(tiny_model, byte_tokenizer, tokens[:255], seed=0)
    assert all(close(one, other) for one, other in zip(steps[:254], first, strict=False))
    later = score(tiny_model, byte_tokenizer, tokens[255:], after=[256, *tokens][128:256], seed=0)
    assert all(close(one, other) for one, other in zip(steps[255:], later, strict=True))


@pytest.mark.parametrize(
    ("text", "after"), [("", None), ([], None), ("a", ""), ([999], None), ([256], None)]
)
def test_a_text_that_cannot_be_measured_is_refused(tiny_model, byte_tokenizer, text, after):
    with pytest.raises(PromptError):
        score(tiny_model, byte_tokenizer, text, after=after)


def test_what_precedes_a_text_must_fit(tiny_model, byte_tokenizer):
    with pytest.raises(ContextLengthError, match="precedes"):
        score(tiny_model, byte_tokenizer, "a", after=TEXT * 10, split=True)


def test_damaged_weights_are_reported(byte_tokenizer):
    model = make_tiny_model()
    model.inner.model.norm.weight = model.inner.model.norm.weight * float("nan")
    with pytest.raises(NonFiniteLogitsError):
        score(model, byte_tokenizer, "abc")


def test_reading_can_be_cancelled_and_watched(tiny_model, byte_tokenizer):
    cancel, reported = threading.Event(), []
    steps = stream_score(
        tiny_model,
        byte_tokenizer,
        TEXT,
        hooks=Hooks(cancel, lambda done, total: reported.append((done, total))),
    )
    for step in steps:
        if step.index == 3:
            cancel.set()
    assert step.index == 3
    hooks = Hooks(on_prefill=lambda *report: reported.append(report))
    list(stream_score(tiny_model, byte_tokenizer, TEXT, hooks=hooks))
    assert reported[-1] == (len(TEXT), len(TEXT))
