"""A draft model: what it proposes, and that it changes nothing of what is written."""

import copy
import json
import math
import queue

import pytest

from entropix_mlx import DraftModel, Session, Settings, batch_generate, cli, stream_generate
from entropix_mlx.backends.base import BackendThread
from entropix_mlx.backends.events import CancelToken
from entropix_mlx.backends.local import LocalBackend
from entropix_mlx.errors import SettingsError, TokenizerError, UnsupportedModelError
from entropix_mlx.models.tapped.model import TappedModel
from entropix_mlx.summary import Summary
from tests import architectures
from tests.conftest import make_tiny_model, make_word_tokenizer
from tests.engine.test_ngram import THINKING, always_branch, same

pytestmark = pytest.mark.slow

PROMPT = list(b"What comes next?")


@pytest.fixture(scope="module")
def other():
    return make_tiny_model(seed=7, num_hidden_layers=1)


def answer(model, tokenizer, draft=None, **options):
    options = {"max_tokens": 28, "seed": 1, "speculation": "off"} | options
    return list(stream_generate(model, tokenizer, PROMPT, draft_model=draft, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": "min_p", "temperature": 1.5},
        {"sampler": "mirostat"},
        {"profile": always_branch(depth=3)},
        {"profile": THINKING},
        {"speculation": 4},
    ],
    ids=["hot", "mirostat", "forks", "thinking", "with n-grams"],
)
def test_a_draft_changes_no_step(tiny_model, other, endless, options):
    without = answer(tiny_model, endless, **options)
    for model in (tiny_model, other):
        assert same(answer(tiny_model, endless, DraftModel(model, endless), **options), without)


@pytest.mark.parametrize("sampler", ["greedy", "min_p", "entropix"])
def test_proposals_of_a_model_that_agrees_are_accepted(tiny_model, endless, sampler):
    steps = answer(tiny_model, endless, DraftModel(tiny_model, endless, 4), sampler=sampler)
    summary = Summary.of(steps)
    if sampler != "entropix":  # whose forks are not proposed
        assert summary.accepted == 4 * len(steps) // 5
    assert summary.accepted >= 0.9 * (summary.proposed - 4) > 0


def test_one_draft_serves_answer_after_answer(tiny_model, other, endless):
    draft = DraftModel(other, endless, 2)
    alone = answer(tiny_model, endless, max_tokens=20)
    for _ in range(3):
        steps = stream_generate(
            tiny_model, endless, PROMPT, max_tokens=20, seed=1, speculation="off", draft_model=draft
        )
        assert [next(steps).token for _ in range(10)] == [step.token for step in alone[:10]]
        steps.close()
    assert len(draft.take(PROMPT).ids) > len(PROMPT), "the cache was given back"


def test_a_draft_may_hold_less_than_the_model(tiny_model, endless):
    short = make_tiny_model(max_position_embeddings=len(PROMPT) + 20)
    steps = answer(tiny_model, endless, DraftModel(short, endless), sampler="greedy")
    assert Summary.of(steps).accepted > 0
    assert same(steps, answer(tiny_model, endless, sampler="greedy"))


def test_a_draft_serves_every_row_of_a_batch(tiny_model, other, endless):
    prompts = [PROMPT, PROMPT, list(b"xyz")]
    settings = Settings(20, seed=3, speculation="off")
    found = []
    for draft in (None, DraftModel(other, endless)):
        batch = batch_generate(
            tiny_model, endless, prompts, settings, steady=True, draft_model=draft
        )
        found.append(batch.finish())
    for one, two in zip(*found, strict=True):
        assert one.error is two.error is None
        assert same(one.steps, two.steps)


def renamed(tokenizer, **special):
    changed = copy.deepcopy(tokenizer)
    changed._tokenizer.add_special_tokens(special)
    return changed


def test_another_tokenizer_is_refused(tiny_model, endless):
    longer = make_word_tokenizer()
    longer._tokenizer.add_tokens(["<one>", "<two>", "<three>", "<four>"])
    with pytest.raises(TokenizerError, match="<one>"):
        answer(tiny_model, endless, DraftModel(tiny_model, longer))
    with pytest.raises(TokenizerError, match="eos_token"):
        answer(tiny_model, endless, DraftModel(tiny_model, renamed(endless, eos_token="‹s›")))


@pytest.mark.parametrize("kind", ["mamba", "iquestloopcoder"])
def test_any_model_may_be_a_draft(tiny_model, endless, kind):
    tapped = TappedModel(*architectures.make(kind))
    options = {"max_tokens": 9}
    proposed = answer(tiny_model, endless, DraftModel(tapped, endless), **options)
    assert same(proposed, answer(tiny_model, endless, **options))
    assert Summary.of(proposed).proposed


def test_what_a_draft_cannot_do_is_refused(tiny_model, endless):
    draft = DraftModel(tiny_model, endless)
    cache = tiny_model.make_cache()
    next(stream_generate(tiny_model, endless, PROMPT, prompt_cache=cache))
    with pytest.raises(UnsupportedModelError, match=f"{len(PROMPT)} tokens of unknown text"):
        answer(tiny_model, endless, draft, prompt_cache=cache)
    mamba = TappedModel(*architectures.make("mamba"))
    for proposals in ({"draft": draft}, {"speculation": 3}):
        with pytest.raises(UnsupportedModelError, match="cache of this mamba cannot take back"):
            answer(mamba, endless, **proposals)
    steps = answer(mamba, endless, speculation="auto", max_tokens=2)
    assert all(math.isnan(step.agreement) for step in steps), "it attends to nothing"
    with pytest.raises(TypeError, match="must be a DraftModel"):
        answer(tiny_model, endless, tiny_model)
    for tokens in (0, 17):
        with pytest.raises(SettingsError, match="tokens"):
            DraftModel(tiny_model, endless, tokens)


def test_the_command_line_names_a_draft_model(tiny_folder, capsys):
    ask = ["--model", str(tiny_folder), "--seed", "1", "--sampler", "greedy"]
    ask += ["--speculation", "off"]
    draft = ["--draft-model", str(tiny_folder), "--num-draft-tokens", "2"]
    found = []
    for options in ([], draft):
        assert cli.main(["generate", *ask, "-p", "abc", "-m", "12", "--json", *options]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["text"] == found[1]["text"]
    assert found[0]["speculation"]["accepted"] == 0
    assert found[1]["speculation"]["accepted"] >= 6
    assert cli.main(["generate", *ask, "-p", "abc", "-m", "9", "--n", "2", "--json", *draft]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert cli.main(["generate", *ask, "-p", "abc", *draft[2:]]) == 2
    assert "name it with --draft-model" in capsys.readouterr().err


def test_a_chat_keeps_the_draft_models_cache(tiny_model, endless):
    session = Session(tiny_model, endless, Settings(12, "greedy", speculation="off"))
    plain = [[step.token for step in session.send(text)] for text in ("one", "two")]
    session.new()
    session.draft_model = DraftModel(tiny_model, endless)
    for text, expected in zip(("one", "two"), plain, strict=True):
        steps = list(session.send(text))
        assert [step.token for step in steps] == expected
        assert Summary.of(steps).accepted >= 6


def test_the_full_screen_loads_it_on_the_models_thread(tiny_model, endless):
    loaded = queue.SimpleQueue()
    backend = LocalBackend(
        "tiny",
        lambda: (tiny_model, endless),
        Settings(8, "greedy", speculation="off"),
        load_draft=DraftModel,
    )
    thread = BackendThread(backend, lambda event: None)
    thread.start()
    thread.submit(lambda session, cancel: loaded.put(session.draft_model), CancelToken())
    assert isinstance(loaded.get(timeout=20), DraftModel)
    thread.stop()
    thread.join()
