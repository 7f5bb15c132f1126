"""Settings and the arguments of `stream_generate`: what is accepted, what is refused and how."""

import threading

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Profile, Settings, generate, stream_generate
from entropix_mlx.errors import EntropixError
from entropix_mlx.profiles import selection

PROMPT = list(b"Hello")


def test_numbers_of_numpy_are_plain_numbers_afterwards():
    settings = Settings(
        max_tokens=np.int32(5),
        seed=np.uint64(7),
        top_logprobs=np.int8(2),
        temperature=np.float32(1),
    )
    assert settings == Settings(max_tokens=5, seed=7, top_logprobs=2, temperature=1.0)
    assert {type(v) for v in (settings.max_tokens, settings.seed, settings.top_logprobs)} == {int}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -5),
        ("max_tokens", 1.5),
        ("max_tokens", None),
        ("max_tokens", True),
        ("top_logprobs", -1),
        ("top_logprobs", "3"),
        ("seed", "x"),
        ("seed", 1.5),
        pytest.param("seed", 10**5000, id="thousands of digits"),
        ("attention_layers", "first"),
        ("attention_layers", ["last"]),
        ("temperature", "x"),
        ("temperature", float("nan")),
        pytest.param("temperature", 10**400, id="beyond float"),
        ("top_k", 10**20),
        ("min_p", [0.1]),
        ("sampler", 3),
        ("profile", 3),
        ("changes", [1]),
    ],
)
def test_an_impossible_value_is_refused_by_name(name, value):
    with pytest.raises(EntropixError, match=f"^{name} must be"):
        Settings(**{name: value})


def test_resolved_settings_have_a_profile_and_a_seed(tiny_model, monkeypatch):
    asked = Settings(changes={"thresholds": {"low_entropy": 9.0}})
    resolved = asked.resolved(tiny_model.config)
    assert resolved.profile == Profile.load().replace(asked.changes)
    assert resolved.seed is not None
    assert resolved.settings.changes == {}

    monkeypatch.setattr(selection, "profile_for", lambda *_: pytest.fail("it was found already"))
    again = resolved.settings.resolved(tiny_model.config)
    assert (again.profile, again.seed) == (resolved.profile, resolved.seed)
    assert resolved.with_seed(7).settings.seed == 7
    assert resolved.with_seed(7).sampler is resolved.sampler


def test_a_run_looks_for_its_profile_once(run_generate, monkeypatch):
    found = []
    original = selection.profile_for
    monkeypatch.setattr(selection, "profile_for", lambda c: found.append(1) or original(c))
    run_generate()
    assert len(found) == 1


@pytest.fixture
def run_generate(tiny_folder, tmp_path, capsys):
    from entropix_mlx import cli

    def run():
        trace = str(tmp_path / "trace.jsonl")
        arguments = ["--model", str(tiny_folder), "-p", "x", "-m", "2", "--trace", trace]
        assert cli.main(["generate", *arguments]) == 0
        assert "no profile was calibrated for this model" in capsys.readouterr().err

    return run


@pytest.fixture
def start(tiny_model, byte_tokenizer):
    return lambda *arguments, **options: stream_generate(
        tiny_model, byte_tokenizer, *arguments, **options
    )


def tokens(steps):
    return [step.token for step in steps]


def test_settings_and_options_are_the_same(start, tiny_model, byte_tokenizer):
    settings = Settings(max_tokens=6, seed=2, sampler="min_p")
    expected = tokens(start(PROMPT, max_tokens=6, seed=2, sampler="min_p"))
    assert tokens(start(PROMPT, settings)) == expected
    assert (
        tokens(start(PROMPT, Settings(seed=1), max_tokens=6, seed=2, sampler="min_p")) == expected
    )
    for prompt in (
        tuple(PROMPT),
        np.array(PROMPT),
        mx.array(PROMPT),
        [np.int32(t) for t in PROMPT],
    ):
        assert tokens(start(prompt, settings)) == expected
    text = "".join(step.text for step in start(PROMPT, settings))
    assert generate(tiny_model, byte_tokenizer, PROMPT, settings) == text


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((PROMPT, 40), {}, r"not 40: pass max_tokens=40"),
        ((PROMPT, "greedy"), {}, "fourth argument is a Settings, not 'greedy'"),
        ((PROMPT,), {"max_token": 3}, r"no option max_token; did you mean max_tokens\?"),
        ((PROMPT,), {"cancel": True}, "cancel must be a threading.Event"),
        ((PROMPT,), {"choose": 1}, "choose must be a function"),
        ((PROMPT,), {"on_prefill": threading.Event()}, "on_prefill must be a function"),
        (([1.5],), {}, "prompt must hold token ids, not 1.5"),
        ((None,), {}, "prompt must be a text or token ids, not None"),
        ((b"Hello",), {}, "prompt must be a text or token ids, not b'Hello'"),
        (([[1, 2]],), {}, "prompt must hold token ids"),
        ((PROMPT,), {"seed": "x"}, "seed must be a whole number, not 'x'"),
    ],
)
def test_a_mistake_of_a_program_shows_before_any_work(start, arguments, options, message):
    with pytest.raises((TypeError, EntropixError), match=message):
        start(*arguments, **options)
