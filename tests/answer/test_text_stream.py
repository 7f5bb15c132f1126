"""Streamed text is the decoded text, for any tokens of any kind of tokenizer."""

import io
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

from entropix_mlx.answer.text_stream import TextStream
from entropix_mlx.checkpoints.tokenizers import gguf_tokenizer
from tests.folders import ALPHABET

WORDS = ("Ġthe", "the", "Ġ", "Ċ", "Ã©", "é", "!", "Ġ.", "<0x41>")


def byte_level(tmp_path_factory):
    tokens = [*ALPHABET, *dict.fromkeys(word for word in WORDS if word not in ALPHABET), "<s>"]
    described = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * (len(tokens) - 1) + [3],
        "bos_token_id": len(tokens) - 1,
    }
    keys = {f"tokenizer.ggml.{name}": value for name, value in described.items()}
    return gguf_tokenizer(Path("here"), keys)


def tidying(tmp_path_factory):
    tokenizer = byte_level(tmp_path_factory)
    tokenizer._tokenizer.clean_up_tokenization_spaces = True
    return tokenizer


def with_holes(tmp_path_factory):
    """Every other id has no token."""
    vocabulary = {character: 2 * number for number, character in enumerate(ALPHABET)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def sentence_piece(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spm")
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(f"{number} quick brown foxes jump" for number in range(200)),
        model_writer=content,
        vocab_size=330,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(content.getvalue())
    return TokenizerWrapper(LlamaTokenizer.from_pretrained(folder))


@pytest.fixture(scope="module", params=[byte_level, tidying, with_holes, sentence_piece])
def tokenizer(request, tmp_path_factory):
    return request.param(tmp_path_factory)


def decoded(tokenizer, tokens):
    return tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


def streamed(tokenizer, prompt, answer):
    stream = TextStream(tokenizer, prompt)
    return "".join([*(stream.add(token) for token in answer), stream.finish()])


@given(data=st.data())
def test_pieces_add_up_to_the_text(tokenizer, data):
    ids = st.integers(0, len(tokenizer) - 1)
    # A prompt is text: it ends with a whole character.
    prompt = tokenizer.encode("quick! " + data.draw(st.text(max_size=5)) + "x")
    answer = data.draw(st.lists(ids, max_size=25))
    whole, before = decoded(tokenizer, prompt + answer), decoded(tokenizer, prompt)
    assert whole.startswith(before)
    assert streamed(tokenizer, prompt, answer) == whole[len(before) :]
    assert streamed(tokenizer, [], answer) == decoded(tokenizer, answer)


@given(text=st.text(max_size=30))
def test_a_text_comes_back(tokenizer, text):
    text = unicodedata.normalize("NFKC", text)
    prompt = tokenizer.encode("quick")
    answer = tokenizer.encode(text, add_special_tokens=False)
    assert streamed(tokenizer, [], answer) == decoded(tokenizer, answer)
    expected = decoded(tokenizer, prompt + answer)[len(decoded(tokenizer, prompt)) :]
    assert streamed(tokenizer, prompt, answer) == expected


def test_every_byte_comes_back_as_it_is(byte_tokenizer):
    text = "\0\t\x7f é 日本 🙂 .\n ,"
    answer = byte_tokenizer.encode(text)
    assert streamed(byte_tokenizer, [], answer) == text


def test_a_character_comes_when_it_is_whole(byte_tokenizer):
    stream = TextStream(byte_tokenizer)
    pieces = [stream.add(token) for token in byte_tokenizer.encode("a🙂b")]
    assert pieces == ["a", "", "", "", "🙂", "b"]


def test_bytes_that_never_become_a_character_are_not_waited_for(byte_tokenizer):
    stream = TextStream(byte_tokenizer)
    stray = byte_tokenizer.convert_tokens_to_ids("Ģ")
    text = "".join(stream.add(stray) for _ in range(1000))
    assert 900 <= len(text) <= 1000
    assert len(text + stream.finish()) == 1000
