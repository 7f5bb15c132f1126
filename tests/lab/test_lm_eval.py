"""The model class for lm-eval against mlx-lm's own, on requests made by hand."""

from types import SimpleNamespace

import pytest

from entropix_mlx.errors import PromptError

pytest.importorskip("lm_eval", reason="needs the extra eval")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # those of lm-eval's own imports
    pytest.mark.model,
]

PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " Berlin, which lies on the Seine"),
    ("Two and two make", " four."),
]
TEXTS = ["The quick brown fox jumps over the lazy dog.", "Ein Satz, und noch einer."]


def requests(*arguments):
    return [SimpleNamespace(args=one) for one in arguments]


@pytest.fixture(scope="module")
def ours(demo_folder):
    from lm_eval.api.registry import get_model

    from entropix_mlx.lab.lm_eval import EntropixLM

    assert get_model("entropix_mlx") is EntropixLM
    return EntropixLM(str(demo_folder), batch_size=2)


@pytest.fixture(scope="module")
def theirs(demo_folder):
    from mlx_lm.evaluate import MLXLM

    return MLXLM(str(demo_folder))


def test_texts_are_as_probable_as_with_mlx_lm(ours, theirs):
    found, expected = (lm.loglikelihood(requests(*PAIRS)) for lm in (ours, theirs))
    assert [value for value, _ in found] == pytest.approx([v for v, _ in expected], abs=1e-3)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    texts = requests(*((text,) for text in TEXTS))
    found, expected = (lm.loglikelihood_rolling(texts) for lm in (ours, theirs))
    assert found == pytest.approx(expected, abs=1e-3)


def test_long_texts_are_cut_into_pieces(ours, monkeypatch):
    (whole,) = ours.loglikelihood_rolling(requests((TEXTS[0] * 4,)))
    monkeypatch.setattr(ours, "max_length", 16)
    (pieces,) = ours.loglikelihood_rolling(requests((TEXTS[0] * 4,)))
    assert pieces < whole
    monkeypatch.setattr(ours, "max_length", 3)
    too_long, bare = ours.loglikelihood(requests(("One two", " three four five six"), ("", "Hi")))
    assert too_long[0] < -1e9
    assert -100 < bare[0] < 0, "without a context"


def test_answers_end_before_the_strings_of_the_task(ours):
    options = {"until": ["\n", "."], "max_gen_toks": 12}
    context = ours.apply_chat_template([{"role": "user", "content": "Name a colour."}])
    answers = ours.generate_until(requests((context, options), ("One, two,", options)))
    assert len(answers) == 2
    assert all("\n" not in text and "." not in text for text in answers)
    with pytest.raises(PromptError):
        ours.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=False)
