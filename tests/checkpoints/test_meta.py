"""Meta's folders, made by the tests: files as PyTorch writes them, without PyTorch."""

import io

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import sentencepiece

from entropix_mlx import load
from entropix_mlx.checkpoints.torch_file import open_torch_file
from entropix_mlx.conversion.convert import convert
from tests.folders import write_meta, write_torch

TOKENS = mx.array([[5, 1, 200, 77, 3]])


@pytest.mark.parametrize(("count", "embedding_axis"), [(1, 0), (2, 0), (2, 1)])
def test_the_logits_are_those_of_the_model(tmp_path, count, embedding_axis):
    model = write_meta(tmp_path, count, embedding_axis)
    loaded, tokenizer = load(tmp_path)
    np.testing.assert_allclose(loaded(TOKENS).logits, model(TOKENS).logits, rtol=1e-4, atol=1e-3)
    assert tokenizer.encode("the<|eot_id|>") == [258, 257, 258 + 9]
    assert tokenizer.eos_token_ids == {259, 258 + 9}
    assert len(tokenizer.get_vocab()) == 258 + 256
    theirs, tokenizer = mlx_lm.load(str(convert(tmp_path, tmp_path / "out")))
    np.testing.assert_allclose(theirs(TOKENS), model(TOKENS).logits, rtol=1e-3, atol=1e-3)
    assert tokenizer.decode(tokenizer.encode("the é")) == "<|begin_of_text|>the é"


def test_llama_2s_tokenizer(tmp_path):
    text = [f"{number} quick brown foxes jump over lazy dogs" for number in range(200)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    write_meta(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    _, tokenizer = load(tmp_path)
    for text in ("12 lazy foxes", "é日本"):
        assert tokenizer.encode(text) == [1, *reference.encode(text)]
    assert tokenizer.eos_token_ids == {2}


def test_a_tensor_of_one_number_is_read(tmp_path):
    file = write_torch(tmp_path / "a.pth", {"a": np.full((1, 1), 7, np.float32)})
    assert open_torch_file(file)["a"].read().tolist() == [[7.0]]
