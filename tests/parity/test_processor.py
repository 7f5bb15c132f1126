"""The samplers inside transformers, against the distributions that ours draw from."""

import numpy as np
import pytest

from entropix_mlx import SAMPLERS, Settings, load, score
from entropix_mlx.api.score import distribution_after
from entropix_mlx.bridges.processor import SamplerProcessor
from entropix_mlx.errors import SamplerError
from entropix_mlx.samplers.registry import make_sampler
from tests.parity.test_architectures import TINY, random_torch_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

PROMPT, LENGTH, VOCAB, SEED = [1, 2, 3, 4, 5], 8, TINY["vocab_size"], 3
REMEMBERS = {name for name in SAMPLERS if make_sampler(name).remembered is not None}
GIVEN = {"top_p": {"top_p": 0.7}, "min_p": {"min_p": 0.1}, "temperature": {"top_k": 5}}


@pytest.fixture(scope="module")
def models(tmp_path_factory, byte_tokenizer):
    torch_model, folder = random_torch_model(TINY), tmp_path_factory.mktemp("processor")
    torch_model.save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    return torch_model, *load(folder)


def generate(torch_model, processor, **options):
    torch.manual_seed(0)
    with torch.no_grad():
        return torch_model.generate(
            torch.tensor([PROMPT]),
            logits_processor=transformers.LogitsProcessorList([processor]),
            max_new_tokens=LENGTH,
            do_sample=True,
            top_k=0,
            eos_token_id=VOCAB,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - REMEMBERS - {"entropix"}))
def test_the_draw_is_ours(models, name):
    torch_model, model, tokenizer = models
    given = GIVEN.get(name, {})
    found = generate(torch_model, SamplerProcessor(name, seed=SEED, **given))
    tokens = found.sequences[0, len(PROMPT) :].tolist()
    settings = Settings(sampler=name, seed=SEED, top_logprobs=VOCAB, profile="reference", **given)
    steps = score(model, tokenizer, tokens, settings, after=PROMPT)
    for count, scores in enumerate(found.scores, 1):
        ours = distribution_after(
            model, tokenizer, PROMPT, steps[:count], settings.resolved(model.config)
        )
        expected = np.zeros(VOCAB)
        for each in ours.candidates:
            expected[each.token] = each.drawn
        assert np.abs(scores[0].exp().numpy() - expected).max() < 1e-4


def test_entropix_draws_by_the_tree_and_each_row_for_itself(models):
    scores = torch.randn((3, VOCAB))
    scores[0, 7] = 40.0
    scores[1, 5:] = -torch.inf
    processor, ids = SamplerProcessor(seed=SEED), torch.tensor([PROMPT])
    drawn = processor(ids.repeat(3, 1), scores).exp()
    assert drawn[0, 7] == 1  # where it is sure, it is greedy
    assert drawn[1, 5:].max() == 0
    assert drawn.sum(-1).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert torch.equal(drawn[:1], processor(ids, scores[:1]).exp())
    assert len(generate(models[0], processor).scores) == LENGTH


@pytest.mark.parametrize("name", sorted(REMEMBERS))
def test_samplers_with_a_memory_are_refused(name):
    with pytest.raises(SamplerError, match="remembers"):
        SamplerProcessor(name)
