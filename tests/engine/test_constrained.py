"""Constraints in the engine: every answer matches, and the mask changes nothing else."""

import json
import re
from dataclasses import replace
from itertools import cycle

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from mlx_lm.tokenizer_utils import TokenizerWrapper

from entropix_mlx import Settings, batch_generate, stream_generate
from entropix_mlx.constraints.constraint import Constraint
from entropix_mlx.constraints.matcher import JSON_OPTIONS
from entropix_mlx.errors import ConstraintError
from entropix_mlx.step import Origin
from tests.answer.test_forks import always_branch
from tests.conftest import PROMPT, make_byte_tokenizer, make_tiny_model, run_answer, tokens

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": ["small", "large"]},
        "parts": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "open": {"type": "boolean"},
    },
    "required": ["name", "size", "parts", "open"],
    "additionalProperties": False,
}
REGEXES = ["[a-f]{3,20}(-[0-9]{2,4})*", "(yes|no|perhaps)+", "x{5}y*z", "(ab|cd){2,9}!"]
JSON = Constraint("json_schema", SCHEMA)


@pytest.fixture(scope="module")
def spelling() -> TokenizerWrapper:
    return make_byte_tokenizer("name size parts open small large true false perhaps")


@pytest.fixture(scope="module")
def model(spelling):
    return make_tiny_model(vocab_size=len(spelling.get_vocab()), max_position_embeddings=1024)


@pytest.fixture
def run(model, spelling):
    def run(constraint, **options):
        options = {"seed": 1, "max_tokens": 300, "sampler": "entropix"} | options
        return list(stream_generate(model, spelling, PROMPT, constraint=constraint, **options))

    return run


def text_of(steps):
    return "".join(step.text for step in steps)


def greedy_by_hand(model, tokenizer, grammar, prompt, most):
    """Return the most probable allowed tokens, one after the other, by the mask of a fresh matcher
    and the logits of the whole text computed anew."""
    size = model.config.vocab_size
    matcher = LLMatcher(from_tokenizer(tokenizer._tokenizer, n_vocab=size), grammar)
    found = []
    while len(found) < most and not (found and found[-1] == tokenizer.eos_token_id):
        logits = model(mx.array([[*prompt, *found]]), model.make_cache()).logits[0, -1]
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[:size].astype(bool)
        found.append(int(np.where(allowed, np.array(logits, dtype=np.float64), -np.inf).argmax()))
        matcher.consume_token(found[-1])
    return found


def grammar_of(constraint):
    if constraint is JSON:
        return LLMatcher.grammar_from_json_schema(SCHEMA, overrides=JSON_OPTIONS)
    return LLMatcher.grammar_from_regex(constraint["regex"])


@pytest.mark.parametrize("constraint", [JSON, *({"regex": regex} for regex in REGEXES)])
def test_greedy_tokens_are_those_of_a_plain_loop_that_applies_the_mask(
    run, model, spelling, constraint
):
    plain = greedy_by_hand(model, spelling, grammar_of(constraint), PROMPT, 60)
    for speculation in ("auto", "off", 4):
        steps = run(constraint, sampler="greedy", max_tokens=60, speculation=speculation)
        assert tokens(steps) == plain


SAMPLERS = [
    ("greedy", {}),
    ("xtc", {}),
    ("temperature", {"repetition_penalty": 1.2}),
    ("top_n_sigma", {"temperature": 5.0}),
]
SAMPLERS += [("entropix", {}), ("entropix", {"temperature": 5.0}), ("min_p", {"temperature": 9.0})]


DRAWN = [
    *((JSON, *drawing) for drawing in SAMPLERS),
    *zip(cycle({"regex": regex} for regex in REGEXES), *zip(*SAMPLERS, strict=True)),
]
"""Every sampler with the schema and one expression, which is another for the next sampler."""


@pytest.mark.parametrize(("constraint", "sampler", "options"), DRAWN)
def test_every_complete_answer_fits_whatever_draws_it(run, constraint, sampler, options):
    steps = run(constraint, sampler=sampler, max_tokens=90, frequency_penalty=0.1, **options)
    if steps[-1].finish_reason == "length":
        return
    if constraint is JSON:
        jsonschema.validate(json.loads(text_of(steps)), SCHEMA)
    else:
        assert re.fullmatch(constraint["regex"], text_of(steps))


def test_a_constrained_answer_goes_on_where_it_was(run, model, spelling):
    settings = Settings(seed=1, max_tokens=300, sampler="temperature", constraint=JSON)
    steps = run_answer(model, spelling, PROMPT, settings.resolved(model.config))
    begun = steps[: len(steps) // 2]
    prompt = PROMPT + tokens(begun)
    rest = run_answer(model, spelling, prompt, settings.resolved(model.config), answered=begun)
    assert tokens(rest) == tokens(steps[len(begun) :])


def test_reasoning_is_not_constrained_and_the_answer_behind_it_is():
    fast = make_byte_tokenizer()._tokenizer
    fast.add_tokens(["<think>", "</think>"])
    tokenizer, model = TokenizerWrapper(fast), make_tiny_model(vocab_size=260)
    prompt = [*PROMPT, *tokenizer.encode("<think>")]
    options = {"constraint": {"regex": "a{3}"}, "seed": 1, "max_tokens": 60}
    bias = {"logit_bias": dict.fromkeys(tokenizer.encode("</think>"), 2.0) | {257: -100.0}}
    steps = list(
        stream_generate(model, tokenizer, prompt, sampler="temperature", **options, **bias)
    )
    reasoning, end, answer = text_of(steps).partition("</think>")
    assert (bool(reasoning), end, answer) == (True, "</think>", "aaa")
    assert steps[0].strain is None


def test_a_constraint_that_allows_everything_changes_nothing(tiny_model, endless):
    def steps(constraint):
        return list(
            stream_generate(
                tiny_model,
                endless,
                PROMPT,
                max_tokens=40,
                seed=3,
                constraint=constraint,
                changes={"think": {"max_insertions": 0}},
                logit_bias={256: -1e3, 257: -1e3},  # the special tokens, which are no text
            )
        )

    bound, free = steps({"regex": "(?s:.*)"}), steps(None)
    assert tokens(bound) == tokens(free)
    for one, other in zip(bound, free, strict=True):
        assert one.metrics[:] == pytest.approx(other.metrics[:], abs=1e-4)
        assert one.strain < 0.1
        assert other.strain is None


def test_strain_is_what_the_mask_removed(run, model, spelling):
    prompt = list(PROMPT)
    for step in run({"choice": ["yes", "no", "none"]}):
        logits = np.array(model(mx.array([prompt]), model.make_cache()).logits[0, -1], np.float64)
        logprobs = logits - np.logaddexp.reduce(logits)
        allowed = [other.token for other in step.allowed]  # fewer than are listed at most
        assert step.strain == pytest.approx(
            -np.logaddexp.reduce(logprobs[allowed]) / np.log(2), abs=1e-2
        )
        assert step.allowed_logprob <= 1e-3
        prompt.append(step.token)


def test_branches_fit_and_those_of_the_loser_leave_no_trace(run):
    profile = always_branch(width=3, depth=6, min_gap=1)
    steps = run(JSON, profile=profile, max_tokens=120)
    assert any(step.origin is Origin.BRANCH for step in steps)
    assert all(len(step.fork.branches) > 1 for step in steps if step.fork)
    matched = run(JSON, profile=profile, max_tokens=120, speculation="off")
    assert tokens(matched) == tokens(steps)
    if steps[-1].finish_reason == "stop":
        jsonschema.validate(json.loads(text_of(steps)), SCHEMA)


def test_answers_with_and_without_constraints_share_passes(model, spelling):
    asked = [JSON, None, {"regex": REGEXES[0]}, {"choice": ["small", "large"]}, JSON]
    settings = [
        Settings(constraint=one, seed=number, max_tokens=60) for number, one in enumerate(asked)
    ]
    together = batch_generate(model, spelling, [PROMPT] * len(asked), settings).finish()
    for answer, own in zip(together, settings, strict=True):
        assert tokens(answer.steps) == tokens(stream_generate(model, spelling, PROMPT, own))


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "(a"},
        {"regex": "(?=a)b"},
        {"grammar": "start: missing"},
        {"json_schema": {"type": "thing"}},
        {"json_schema": {"type": "array", "contains": {"type": "integer"}}},
        {"json_schema": {"$ref": "https://example.org/schema.json"}},
        {"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}},
        {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        {"json_schema": []},
        {"choice": []},
        {"choice": "yes"},
        {"words": "yes"},
        {"regex": "a", "choice": ["a"]},
        {"choice": ["a" * 600_000]},
    ],
)
def test_a_constraint_that_cannot_be_followed_is_refused_before_any_pass(run, constraint):
    with pytest.raises(ConstraintError):
        run(constraint)


def test_the_one_answer_whose_constraint_fails_ends_alone(model, spelling):
    settings = [Settings(constraint={"regex": one}, seed=1) for one in ("(a", "a{3}")]
    failed, fine = batch_generate(model, spelling, [PROMPT] * 2, settings).finish()
    assert isinstance(failed.error, ConstraintError)
    assert fine.text == "aaa"


@pytest.mark.parametrize("sampler", ["greedy", "temperature"])
def test_json_that_repeats_itself_is_closed(model, spelling, sampler):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "open": {"type": "boolean"}},
        "required": ["name", "open"],
    }
    vocabulary = spelling.get_vocab()
    word = max(filter(str.isalpha, vocabulary), key=len)
    own = Settings(
        seed=1,
        sampler=sampler,
        max_tokens=900,
        constraint={"json_schema": schema},
        logit_bias={vocabulary[word]: 50.0},
    )
    steps = list(stream_generate(model, spelling, PROMPT, own))
    assert steps[-1].finish_reason == "stop"
    found = json.loads(text_of(steps))
    jsonschema.validate(found, schema)
    assert len(found["name"]) > 50
    assert max(step.strain for step in steps) > 1
    longer = replace(own, constraint={"regex": ".*"}, max_tokens=len(steps) + 20)
    other = list(stream_generate(model, spelling, PROMPT, longer))
    assert other[-1].finish_reason == "length", "only JSON is closed"
