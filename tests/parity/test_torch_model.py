"""The decode core on models that torch runs, against our own port and torch's eager attention."""

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Metrics, Origin, load, stream_generate
from entropix_mlx.errors import (
    PromptError,
    SamplerError,
    TokenizerError,
    UnsupportedModelError,
)
from tests.parity.test_architectures import TINY, random_torch_model
from tests.parity.test_tapped import BASE, MODELS, stated

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

from entropix_mlx.bridges.torch_generate import FOLDER  # noqa: E402
from entropix_mlx.bridges.torch_model import TorchModel  # noqa: E402

TOLERANCE = 1e-4
PROMPT, LENGTH = [1, 2, 3, 4, 5, 6, 7], 40
FORKS = {
    "branch": {
        "trigger": "chance",
        "trigger_at": 0.5,
        "margin": 0.0,
        "max_branches": 4,
        "min_gap": 2,
    }
}
THOUGHTS = {
    "thresholds": {"think_max_varentropy": 99.0, "think_min_entropy": 0.0},
    "think": {"place": "word"},
}
WAYS = {
    "plain": {},
    "forks": {"changes": FORKS},
    "thoughts": {"changes": THOUGHTS},
    "all layers": {"attention_layers": "all", "changes": FORKS},
    "a memory": {"sampler": "mirostat"},
    "penalties": {"dry_multiplier": 0.8, "repetition_penalty": 1.1},
    "a constraint": {"constraint": {"regex": "[a-z]{10,30}"}},
    "several answers": {"answers": 3, "changes": {"branch": {"mode": "leaves"}}},
}
OPTIONS = {"seed": 4, "profile": "reference"}
REFUSED = {
    "falcon_h1": MODELS["falcon_h1"][0],
    "mamba": {"state_size": 4},
    "rwkv": {"attention_hidden_size": 64},
}
RUN = {name: configs[0] for name, configs in MODELS.items() if name not in REFUSED}
RUN |= {"llama": {}, "qwen3": {}, "bloom": {}, "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4}}
UNMEASURED = {"bloom", "gemma2"}
"""Scores are capped, or attention is the model's own."""


@pytest.fixture(scope="module")
def models(tmp_path_factory, word_tokenizer):
    """Return transformers' model, and our port of it with its tokenizer."""
    config = TINY | {"num_hidden_layers": 3, "vocab_size": len(word_tokenizer)}
    torch_model, folder = random_torch_model(config), tmp_path_factory.mktemp("torch")
    torch_model.save_pretrained(folder)
    word_tokenizer.save_pretrained(folder)
    return torch_model, *load(folder)


def numbers(step):
    return [getattr(step, name) for name in ("logprob", *Metrics._fields)]


@pytest.mark.parametrize("way", WAYS)
def test_the_answers_are_those_of_our_port(models, way):
    torch_model, model, tokenizer = models
    options = {"max_tokens": LENGTH, **OPTIONS, **WAYS[way]}
    ours = list(stream_generate(model, tokenizer, PROMPT, **options))
    theirs = list(stream_generate(TorchModel(torch_model), tokenizer, PROMPT, **options))
    assert [step.token for step in theirs] == [step.token for step in ours]
    assert [step.origin for step in theirs] == [step.origin for step in ours]
    difference = np.array([*map(numbers, theirs)]) - np.array([*map(numbers, ours)])
    assert np.abs(difference).max() < TOLERANCE
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.fork is None) == (other.fork is None)
        if mine.fork is not None:
            assert [b.tokens for b in other.fork.branches] == [b.tokens for b in mine.fork.branches]
    if "changes" in options and "answers" not in options:
        assert any(step.fork or step.origin is Origin.INSERTED for step in ours)


@pytest.mark.parametrize("name", RUN)
def test_logits_and_scores_are_those_of_eager_attention(name):
    config = stated(name, RUN[name])
    tokens, first = torch.randint(0, BASE["vocab_size"], (1, 60)), 41
    eager = random_torch_model(config)
    with torch.no_grad():
        found = eager(tokens, output_attentions=True)
    model = TorchModel(random_torch_model(config))
    cache = model.make_cache()
    model.prefill(mx.array(tokens[:, :first].numpy()), cache)
    ours = model(mx.array(tokens[:, first:].numpy()), cache, "all")
    assert np.abs(np.array(ours.logits) - found.logits[:, first:].numpy()).max() < TOLERANCE
    assert ours.attended == (name not in UNMEASURED)
    if ours.attended:
        for scores, weights in zip(ours.scores, found.attentions, strict=True):
            shares = mx.softmax(getattr(scores, "scores", scores), axis=-1)
            assert np.abs(np.array(shares) - weights[:, :, -1].numpy()).max() < TOLERANCE


def generate(models, prompts, **options):
    torch_model, _, tokenizer = models
    given = {
        "input_ids": torch.tensor(prompts),
        "tokenizer": tokenizer._tokenizer,
        "max_new_tokens": LENGTH,
        "custom_generate": FOLDER,
        "trust_remote_code": True,
    }
    return torch_model.generate(**given | OPTIONS | options)


def test_generate_of_transformers_answers_with_forks(models):
    torch_model, model, tokenizer = models
    before = torch_model.config._attn_implementation
    found = generate(models, [PROMPT], changes=FORKS, return_dict_in_generate=True)
    steps = list(
        stream_generate(model, tokenizer, PROMPT, max_tokens=LENGTH, changes=FORKS, **OPTIONS)
    )
    assert found.sequences.tolist() == [[*PROMPT, *(step.token for step in steps)]]
    assert [step.token for step in found.steps[0]] == [step.token for step in steps]
    assert any(step.fork for step in found.steps[0])
    assert torch_model.config._attn_implementation == before


def test_rows_are_answered_without_their_padding(models):
    pad, short = 0, PROMPT[3:]
    rows = [PROMPT, [pad] * 3 + short]
    found = generate(models, rows, attention_mask=torch.tensor([[1] * 7, [0] * 3 + [1] * 4]))
    alone = generate(models, [short])
    assert found.shape[0] == 2
    assert found[1, 7 : 7 + len(alone[0]) - 4].tolist() == alone[0, 4:].tolist()


def test_tokens_are_streamed(models):
    class Streamer(transformers.generation.streamers.BaseStreamer):
        def __init__(self):
            self.tokens, self.ended = [], False

        def put(self, value):
            self.tokens += value.reshape(-1).tolist()

        def end(self):
            self.ended = True

    streamer = Streamer()
    assert generate(models, [PROMPT], streamer=streamer)[0].tolist() == streamer.tokens
    assert streamer.ended


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tokenizer": None}, TokenizerError),
        ({"input_ids": None}, PromptError),
        ({"temperature": -1.0}, SamplerError),
        ({"num_beams": 4}, TypeError),
    ],
)
def test_mistakes_are_named(models, options, error):
    with pytest.raises(error):
        generate(models, [PROMPT], **options)


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_keep_a_state_are_refused(name):
    with pytest.raises(UnsupportedModelError):
        TorchModel(random_torch_model(stated(name, REFUSED[name])))
