"""What a token looked at, against a whole Llama in float64 NumPy, and against what was measured."""

import numpy as np
import pytest

from entropix_mlx import Session, Settings, stream_generate
from entropix_mlx.api.attention import ATTENDED, attended, attention_map, attention_rows
from entropix_mlx.api.prompts import conversation_prompt
from entropix_mlx.errors import EntropixError, SessionError, UnsupportedModelError
from entropix_mlx.models.base import LanguageModel
from tests.architectures import make
from tests.conftest import PROMPT, make_tiny_model


def normed(x, norm, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * np.array(norm["weight"], np.float64)


def exact_attention(model, tokens):
    """Return the last position's attention `(layers, heads, tokens)`, all of it in float64."""
    config, decoder = model.inner.args, model.inner.parameters()["model"]
    times = lambda x, part: x @ np.array(part["weight"], np.float64).T  # noqa: E731
    x = np.array(decoder["embed_tokens"]["weight"], np.float64)[tokens]
    n, dim = len(tokens), config.head_dim
    turns = np.arange(n)[:, None] * config.rope_theta ** (-np.arange(dim // 2) * 2 / dim)

    def by_head(y, turns):
        y = y.reshape(n, -1, dim).swapaxes(0, 1)
        a, b, cos, sin = y[..., : dim // 2], y[..., dim // 2 :], np.cos(turns), np.sin(turns)
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    found = []
    for layer in decoder["layers"]:
        part, mlp = layer["self_attn"], layer["mlp"]
        y = normed(x, layer["input_layernorm"], config.rms_norm_eps)
        group = config.num_attention_heads // config.num_key_value_heads
        q, k, v = (by_head(times(y, part[f"{n}_proj"]), turns * (n != "v")) for n in "qkv")
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(dim)
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        found.append(weights[:, -1])
        x = x + times((weights @ v).swapaxes(0, 1).reshape(n, -1), part["o_proj"])
        y = normed(x, layer["post_attention_layernorm"], config.rms_norm_eps)
        gate = times(y, mlp["gate_proj"])
        inner = gate / (1 + np.exp(-gate)) * times(y, mlp["up_proj"])
        x = x + times(inner, mlp["down_proj"])
    return np.stack(found)


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_shares_equal_a_whole_llama_in_float64(length, byte_tokenizer):
    model = make_tiny_model(scale=0.2)
    tokens = np.random.default_rng(length).integers(0, 256, size=length).tolist()
    found = attention_map(model, byte_tokenizer, tokens[:1], tokens[1:])
    np.testing.assert_allclose(found.layers, exact_attention(model, tokens), atol=1e-4)
    np.testing.assert_allclose(np.sum(found.layers, axis=-1), 1, atol=1e-5)
    assert found.shares(2, 1) == pytest.approx(found.layers[2][1])
    assert found.shares() == pytest.approx(np.mean(found.layers, axis=(0, 1)))
    assert found.shares(head=1) == pytest.approx(np.mean(found.layers, axis=0)[1])
    assert (len(found.texts), found.prompt) == (length, 1)
    *_, rows = attention_rows(model, tokens, length // 2)
    np.testing.assert_allclose([layer[-1] for layer in rows], found.layers, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gemma2", "qwen3_next", "deepseek_v3"])
def test_it_is_the_attention_that_was_measured_when_the_token_was_drawn(kind, word_tokenizer):
    model = LanguageModel(*make(kind))
    options = {"sampler": "greedy", "max_tokens": 12, "speculation": "off"}
    *before, last = stream_generate(model, word_tokenizer, PROMPT, **options)
    found = attention_map(model, word_tokenizer, PROMPT, [step.token for step in before])
    shares = np.array(found.layers[-1], np.float64)
    np.testing.assert_allclose(shares.sum(axis=-1), 1, atol=1e-5)
    bits = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
    assert -(shares * bits).sum(axis=-1).mean() == pytest.approx(last.attention_entropy, abs=2e-3)


def test_what_cannot_be_read_is_said(byte_tokenizer, word_tokenizer):
    for tokens in ([], [999], [1] * 300):
        with pytest.raises(EntropixError):
            attention_map(make_tiny_model(), byte_tokenizer, tokens)
    with pytest.raises(UnsupportedModelError):
        attention_map(LanguageModel(*make("mamba")), word_tokenizer, [1, 2])


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next"])
def test_a_session_reads_an_answer_again_and_stays_as_it_is(kind, byte_tokenizer):
    model = LanguageModel(*make(kind))
    session = Session(model, byte_tokenizer, Settings(max_tokens=40, seed=1))
    steps = list(session.send("hi"))[:9]
    found = session.attention(5)
    assert found.texts[found.prompt :] == tuple(step.text for step in steps[:5])
    assert "hi" in "".join(found.texts[: found.prompt])
    with pytest.raises(SessionError):
        session.attention(10**6)
    tokens = conversation_prompt(byte_tokenizer, session.conversation.prompt_messages)
    again = attention_map(model, byte_tokenizer, tokens, [step.token for step in steps[:5]])
    for one, other in zip(found.layers, again.layers, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert session.attention(0).texts == found.texts[: found.prompt]
    assert [step.token for step in session.conversation.last.answer.steps[:9]] == [
        step.token for step in steps
    ]


@pytest.mark.parametrize("length", [1, 2, 40])
def test_what_every_token_looked_at_equals_a_whole_llama_in_float64(length):
    model = make_tiny_model(scale=0.2)
    prompt, answer = [1, 2, 3], np.random.default_rng(length).integers(0, 256, size=length).tolist()
    found = list(attended(model, prompt, answer))
    assert [each.index for each in found] == list(range(length))
    for each in found:
        exact = exact_attention(model, [*prompt, *answer[: each.index]]).mean(axis=(0, 1))
        assert each.prompt == pytest.approx(exact[:3].sum(), abs=1e-4)
        shares = [share for _, share in each.tokens]
        np.testing.assert_allclose(shares, np.sort(exact[3:])[::-1][:ATTENDED], atol=1e-4)
        np.testing.assert_allclose(shares, [exact[3 + at] for at, _ in each.tokens], atol=1e-4)


def test_a_model_with_sliding_windows_is_refused():
    with pytest.raises(UnsupportedModelError):
        list(attended(LanguageModel(*make("gemma3_text")), [1, 2], [5, 6, 7]))
