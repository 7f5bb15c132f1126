"""RAUQ against lm-polygraph's formula, from what transformers generates with torch."""

import numpy as np
import pytest

from entropix_mlx import load, score
from entropix_mlx.api.attention import rauq
from tests.oracle.test_scores import exact_rauq
from tests.parity.test_architectures import TINY, random_torch_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

PROMPT, LENGTH = [1, 2, 3, 4, 5], 12


@pytest.fixture(scope="module")
def answered(tmp_path_factory, byte_tokenizer):
    """Return our model and tokenizer, and torch's greedy answer."""
    torch_model = random_torch_model(TINY | {"num_hidden_layers": 5})
    folder = tmp_path_factory.mktemp("rauq")
    torch_model.save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    with torch.no_grad():
        found = torch_model.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=LENGTH,
            min_new_tokens=LENGTH,
            do_sample=False,
            output_logits=True,
            output_attentions=True,
            return_dict_in_generate=True,
        )
    return *load(folder), found


def lm_polygraphs(logprob, attentions, alpha):
    """Return what lm-polygraph makes of a generation, as its `GreedyProbsCalculator` stacks it."""
    polygraph = pytest.importorskip("lm_polygraph.estimators.rauq")
    layers, heads = len(attentions[0]), attentions[0][0].shape[1]
    stacked = np.zeros((layers, heads, len(logprob), len(logprob)))
    for at, step in enumerate(attentions[1:], 1):
        for number, layer in enumerate(step):
            stacked[number, :, at, :at] = layer[0, :, 0, -at:].numpy()
    stats = {
        "attention_all": [stacked.reshape(layers * heads, *stacked.shape[2:])],
        "greedy_log_likelihoods": [np.array(logprob)],
    }
    return polygraph.RAUQ(alpha=alpha, n_layers=layers, n_heads=heads)(stats)[0]


@pytest.mark.parametrize("alpha", [0.2, 0.5])
@pytest.mark.parametrize("whose", ["the formula", "lm-polygraph"])
def test_rauq_is_as_published(answered, whose, alpha):
    model, tokenizer, found = answered
    tokens = found.sequences[0, len(PROMPT) :].tolist()
    logs = [torch.log_softmax(each[0], -1) for each in found.logits]
    logprob = [float(each[token]) for each, token in zip(logs, tokens, strict=True)]
    if whose == "the formula":
        # At a step behind the first, the newest key is the token before the one that is generated.
        previous = [[layer[0, :, 0, -1].numpy() for layer in step] for step in found.attentions[1:]]
        expected = exact_rauq(logprob, np.array(previous), alpha)
    else:
        expected = lm_polygraphs(logprob, found.attentions, alpha)
    steps = score(model, tokenizer, tokens, after=PROMPT)
    assert rauq(model, PROMPT, steps, alpha) == pytest.approx(expected, abs=1e-3)
