"""Settings and the arguments of `stream_generate`: what is accepted, what is refused and how."""

import json
import threading
from typing import get_type_hints

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Profile, Settings, cli, generate, stream_generate
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.api.prompt_file import read_prompt_file
from entropix_mlx.errors import EntropixError
from entropix_mlx.profiles import profile as profiles
from entropix_mlx.server.requests import AnswerRequest
from entropix_mlx.settings import Options, described
from tests.conftest import tokens

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


IMPOSSIBLE = {
    "max_tokens": [-5, 1.5, None, True],
    "top_logprobs": [-1, "3"],
    "seed": ["x", 1.5, 10**5000],
    "attention_layers": ["first", ["last"]],
    "temperature": ["x", float("nan"), 10**400],
    "top_k": [10**20, 2.5],
    "min_p": [[0.1]],
    "sampler": [3],
    "loops": ["x", None],
    "thinking_budget": [-1, 1.5, "x"],
    "profile": [3],
    "changes": [[1]],
    "repetition_penalty": [0],
    "logit_bias": [[1], {-1: 1}, {1: "x"}],
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_name(name):
    for value in IMPOSSIBLE[name]:
        with pytest.raises(EntropixError, match=f"^{name} must"):
            Settings(**{name: value})


def test_resolved_settings_have_a_profile_and_a_seed(tiny_model, monkeypatch):
    asked = Settings(changes={"thresholds": {"low_entropy": 9.0}})
    resolved = asked.resolved(tiny_model.config)
    assert resolved.profile == Profile.load().replace(asked.changes)
    assert resolved.seed is not None
    assert resolved.settings.changes == {}

    monkeypatch.setattr(profiles, "profile_for", lambda *_: pytest.fail("it was found already"))
    again = resolved.settings.resolved(tiny_model.config)
    assert (again.profile, again.seed) == (resolved.profile, resolved.seed)
    assert resolved.with_seed(7).settings.seed == 7
    assert resolved.with_seed(7).sampler is resolved.sampler


def test_a_run_looks_for_its_profile_once(tiny_folder, tmp_path, monkeypatch):
    found = []
    original = profiles.profile_for
    monkeypatch.setattr(profiles, "profile_for", lambda c: found.append(1) or original(c))
    trace = str(tmp_path / "trace.jsonl")
    arguments = ["--model", str(tiny_folder), "-p", "x", "-m", "2", "--trace", trace]
    assert cli.main(["generate", *arguments]) == 0
    assert len(found) == 1


@pytest.fixture
def start(tiny_model, byte_tokenizer):
    return lambda *arguments, **options: stream_generate(
        tiny_model, byte_tokenizer, *arguments, **options
    )


def test_settings_and_options_are_the_same(start, tiny_model, byte_tokenizer):
    options = {"max_tokens": 3, "seed": 2, "sampler": "min_p"}
    settings = Settings(**options)
    expected = tokens(start(PROMPT, **options))
    assert tokens(start(PROMPT, Settings(seed=1), **options)) == expected
    of_numpy = [np.int32(token) for token in PROMPT]
    for prompt in (PROMPT, tuple(PROMPT), np.array(PROMPT), mx.array(PROMPT), of_numpy):
        assert tokens(start(prompt, settings)) == expected
    text = "".join(step.text for step in start(PROMPT, settings))
    assert generate(tiny_model, byte_tokenizer, PROMPT, settings) == text


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((PROMPT, 40), {}, "max_tokens=40"),
        ((PROMPT, "greedy"), {}, "Settings"),
        ((PROMPT,), {"max_token": 3}, "max_tokens"),
        *(((prompt,), {}, "prompt") for prompt in ([1.5], None, b"Hello", [[1, 2]], "")),
        ((PROMPT,), {"sampler": "greedy", "temperature": 0.5}, "temperature"),
        ((PROMPT,), {"seed": "x"}, "seed"),
    ],
)
def test_a_mistake_of_a_program_shows_before_any_work(start, arguments, options, named):
    with pytest.raises((TypeError, EntropixError), match=named):
        start(*arguments, **options)


@pytest.mark.parametrize(
    "hooks", [{"cancel": True}, {"choose": 1}, {"on_prefill": threading.Event()}], ids=" ".join
)
def test_a_hook_of_a_wrong_type_is_named(hooks):
    with pytest.raises(TypeError, match=next(iter(hooks))):
        Hooks(**hooks)


def test_the_named_parameters_are_the_fields():
    fields = get_type_hints(Settings)
    assert get_type_hints(Options) == fields


@pytest.mark.parametrize("option", described().values(), ids=lambda option: option.name)
def test_a_field_is_an_option_a_field_of_requests_and_a_key_of_prompt_files(option, tmp_path):
    listed = cli.build_app()["generate"].assemble_argument_collection()
    spelt = {name for argument in listed for name in argument.names}
    own = option.names or (f"--{option.name.replace('_', '-')}",)
    stated_by_others = option.name in ("changes", "constraint")  # --set, --schema and the like
    assert spelt.issuperset(own) == (option.option and not stated_by_others)
    assert option.help
    assert option.name in AnswerRequest.model_fields or not option.served
    file = tmp_path / "prompts.jsonl"
    value = {"constraint": {"regex": "x"}}.get(option.name, option.default)
    if value is not None and option.name != "profile":
        file.write_text(json.dumps({"prompt": "x", option.name: value}))
        (line,) = read_prompt_file(file, Settings(), None)
        assert getattr(line.settings, option.name) == getattr(
            Settings(**{option.name: value}), option.name
        )


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("--profile", "[think]\nkinds = 'prose'", "unknown field think.kinds"),
        ("--profile", "[branch]\nmode = 'tree'", "unknown field branch.mode"),
        ("--config", "[options]\nshares = 'x'", "shares: there is no such option"),
    ],
)
def test_a_field_that_was_removed_is_one_sentence(kind, text, named, tmp_path, capsys):
    file = tmp_path / "file.toml"
    file.write_text(text)
    assert cli.main(["generate", "-p", "x", kind, str(file)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert named in message
