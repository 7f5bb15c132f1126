"""Our models in the shape of transformers', against those that torch runs, and in lm-polygraph."""

import numpy as np
import pytest

from entropix_mlx import Settings, load
from entropix_mlx.errors import PromptError, SettingsError
from tests.parity.test_architectures import TINY, random_torch_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

from entropix_mlx.bridges.causal_lm import CausalLM  # noqa: E402

TOLERANCE = 1e-4
LENGTH = 12
PAD = TINY["eos_token_id"]
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [PAD, PAD, 65, 66, 67, 68]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
BATCH = {"input_ids": IDS, "attention_mask": MASK}


@pytest.fixture(scope="module")
def models(tmp_path_factory, byte_tokenizer):
    """Return transformers' model, ours of the same weights, and what ours is made of."""
    theirs = random_torch_model(TINY | {"num_hidden_layers": 3})
    folder = tmp_path_factory.mktemp("causal")
    theirs.save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    loaded = load(folder)
    return theirs, CausalLM(*loaded), loaded


def near(ours, theirs):
    assert ours.shape == theirs.shape
    return np.abs(np.asarray(ours) - np.asarray(theirs)).max() < TOLERANCE


def test_it_is_called_as_one_of_transformers(models):
    theirs, ours, _ = models
    with torch.no_grad():
        expected = theirs(**BATCH, output_attentions=True)
    found = ours(**BATCH, output_attentions=True)
    assert near(found.logits[MASK.bool()], expected.logits[MASK.bool()])
    assert len(found.attentions) == len(expected.attentions)
    for mine, other in zip(found.attentions, expected.attentions, strict=True):
        assert near(mine[0], other[0])
        assert near(mine[1, :, 2:, 2:], other[1, :, 2:, 2:])
    assert ours(IDS).attentions is None


def test_it_generates_as_one_of_transformers(models):
    theirs, ours, _ = models
    options = {
        "max_new_tokens": LENGTH,
        "do_sample": False,
        "output_scores": True,
        "output_attentions": True,
        "output_hidden_states": True,
        "return_dict_in_generate": True,
    }
    expected = theirs.generate(**BATCH, **options, pad_token_id=PAD)
    found = ours.generate(**BATCH, **options)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert len(found.scores) == len(expected.scores) == LENGTH
    for at in range(LENGTH):
        assert near(found.scores[at], expected.scores[at])
        for mine, other in zip(found.attentions[at], expected.attentions[at], strict=True):
            assert near(mine[:, :, -1], other[:, :, -1])
        assert near(found.hidden_states[at][-1][0], expected.hidden_states[at][-1][0])
        assert near(found.hidden_states[at][-1][1, -1], expected.hidden_states[at][-1][1, -1])
    assert ours.generate(**BATCH, max_new_tokens=LENGTH).tolist() == found.sequences.tolist()


def test_samples_suppressed_tokens_and_the_settings(models):
    _, ours, loaded = models
    first = int(ours.generate(IDS[:1], max_new_tokens=1)[0, -1])
    assert int(ours.generate(IDS[:1], max_new_tokens=1, suppress_tokens=[first])[0, -1]) != first
    sampled = ours.generate(
        IDS, do_sample=True, top_k=0, num_return_sequences=5, max_new_tokens=LENGTH
    )
    assert [row[:6].tolist() for row in sampled] == [row.tolist() for row in IDS for _ in range(5)]
    assert len({tuple(row.tolist()) for row in sampled}) == 10
    seeded = CausalLM(*loaded, Settings(seed=3, max_tokens=LENGTH))
    assert torch.equal(seeded.generate(IDS), seeded.generate(IDS))
    assert not torch.equal(seeded.generate(IDS), ours.generate(IDS, max_new_tokens=LENGTH))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"num_beams": 3}, SettingsError),
        ({"penalty_alpha": 0.6}, SettingsError),
        ({"input_ids": torch.tensor([[99999]])}, PromptError),
        ({"max_new_tokens": -5}, SettingsError),
    ],
)
def test_what_cannot_be_followed_is_named(models, given, error):
    with pytest.raises(error):
        models[1].generate(**{"input_ids": IDS, "max_new_tokens": 2} | given)


def test_lm_polygraph_finds_the_same_in_both(models):
    polygraph = pytest.importorskip("lm_polygraph")
    calculators = pytest.importorskip("lm_polygraph.stat_calculators")
    estimators = pytest.importorskip("lm_polygraph.estimators")
    theirs, ours, _ = models
    texts = ["the river of", "one, two, three and"]
    found = []
    for model in (theirs, ours):
        whitebox = polygraph.WhiteboxModel(model, ours.tokenizer, "tiny")
        calculate = calculators.GreedyProbsCalculator(output_hidden_states=True)
        stats = calculate({}, texts, whitebox, max_new_tokens=LENGTH) | {"model": whitebox}
        stats |= calculators.EntropyCalculator()(stats, texts, whitebox, max_new_tokens=LENGTH)
        for estimator in (
            estimators.MaximumSequenceProbability(),
            estimators.Perplexity(),
            estimators.MeanTokenEntropy(),
            estimators.RAUQ(),
        ):
            stats[str(estimator)] = estimator(stats)
        found.append(stats)
    expected, got = found
    assert got["greedy_tokens"] == expected["greedy_tokens"]
    for mine, other in zip(got["attention_all"], expected["attention_all"], strict=True):
        assert near(mine, other)
    # lm-polygraph takes the mean over padding, too: only the longest text has none.
    assert near(got["embeddings_decoder"][1], expected["embeddings_decoder"][1])
    # transformers bars the end of the text from the first two places, as lm-polygraph asks it to.
    for mine, other in zip(got["greedy_log_probs"], expected["greedy_log_probs"], strict=True):
        assert near(mine[2:], other[2:])
    for name in ("RAUQ", "Perplexity", "MeanTokenEntropy"):
        assert got[name] == pytest.approx(expected[name], abs=0.01)
