"""Under-trained tokens: those that were never trained come first, however weights are packed."""

import json

import mlx.core as mx
import mlx.nn as nn
import pytest

from entropix_mlx import cli
from entropix_mlx.conversion import convert
from entropix_mlx.errors import TokenizerError
from entropix_mlx.lab.undertrained import Indicator, find, reserved_tokens
from tests.conftest import make_byte_tokenizer, make_tiny_model

UNUSED = [65, 66, 67]
"""Planted in the output head: nearly one row."""
SHORT = [70, 71]
"""Planted in the embedding: nearly nothing."""


@pytest.fixture
def make_model():
    def make(tied=True, quantized=False):
        model = make_tiny_model(tie_word_embeddings=tied)
        rows = model.model.embed_tokens.weight
        head = rows if tied else model.lm_head.weight
        direction = mx.ones((len(UNUSED), head.shape[1])) * 0.5
        head[mx.array(UNUSED)] = direction + 0.02 * head[mx.array(UNUSED)]
        rows[mx.array(SHORT)] *= 0.01
        if quantized:
            heads = lambda path, _: path in ("model.embed_tokens", "lm_head")  # noqa: E731
            nn.quantize(model, group_size=32, bits=8, class_predicate=heads)
        return model

    return make


@pytest.mark.parametrize("quantized", [False, True])
def test_tied_rows_are_ranked_by_distance(make_model, byte_tokenizer, quantized):
    model = make_model(quantized=quantized)
    findings = find(model, byte_tokenizer, 5, unused=UNUSED[:1])
    assert findings.indicator is Indicator.DISTANCE
    assert {c.token for c in findings.suspects[:3]} == set(UNUSED)
    close, *_, far = (c.distance for c in findings.suspects)
    assert close < 0.01
    assert far > 0.1
    assert len(findings.suspects) == 5
    assert findings.mean == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("quantized", [False, True])
def test_untied_rows_are_ranked_by_norm(make_model, byte_tokenizer, quantized):
    findings = find(make_model(False, quantized), byte_tokenizer, 2, unused=UNUSED)
    assert findings.indicator is Indicator.NORM
    assert {c.token for c in findings.suspects} == set(SHORT)
    assert all(c.norm < 0.1 for c in findings.suspects)
    assert all(c.distance > 0.1 for c in findings.suspects)


def test_without_a_token_known_to_be_unused_there_is_no_distance(make_model, byte_tokenizer):
    findings = find(make_model(), byte_tokenizer, 2)
    assert findings.reserved == []
    assert findings.indicator is Indicator.NORM
    assert {c.distance for c in findings.suspects} == {None}


def test_reserved_are_added_tokens_that_nothing_uses():
    tokenizer = make_byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<pause>", "user"]})
    tokenizer.chat_template = "{% for m in messages %}<s>user {{ m['content'] }}{% endfor %}"
    assert reserved_tokens(tokenizer, 262) == [258, 260, 261], "two rows belong to no token"
    findings = find(make_tiny_model(vocab_size=262), tokenizer, 1)
    assert [c.text for c in findings.reserved] == ["<pause>", "", ""]

    assert reserved_tokens(tokenizer, 258) == [], "tokens that the model does not have"


@pytest.mark.parametrize(
    ("limit", "unused", "error", "names"),
    [
        (1, [258], TokenizerError, "258"),
        (-1, [], TokenizerError, "limit"),
        (1.5, [], TypeError, "limit"),
        (1, ["3"], TypeError, "unused"),
    ],
)
def test_arguments_are_checked(make_model, byte_tokenizer, limit, unused, error, names):
    with pytest.raises(error, match=names):
        find(make_model(), byte_tokenizer, limit, unused)


def test_the_command_lists_them(make_model, byte_tokenizer, tmp_path, capsys):
    convert.save(make_model(), byte_tokenizer, tmp_path)
    arguments = ["tokens", "--model", str(tmp_path), "--unused", "65"]
    assert cli.main([*arguments, "--undertrained", "3"]) == 0
    out, err = capsys.readouterr()
    titles, *lines = [line.split() for line in out.splitlines()]
    assert titles == ["kind", "id", "norm", "distance", "text"]
    assert {line[1] for line in lines} == {"65", "66", "67"}
    assert {line[0] for line in lines} == {"suspect"}
    assert "smallest distance" in err
    assert cli.main([*arguments, "--undertrained", "--json", "--verbose", "false"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["suspects"]) == 20
    assert err == ""
    assert cli.main([*arguments, "--unused", "999"]) == 2
    assert "there is no token 999" in capsys.readouterr().err
