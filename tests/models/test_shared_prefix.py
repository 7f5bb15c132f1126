"""Attention of branches over a shared prefix, against float64 NumPy."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx.models.llama.attention import KeysValues, attend, attend_block, attend_shared


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize(("branches", "prefix", "suffix"), [(1, 5, 1), (5, 40, 3), (3, 1, 7)])
def test_outputs_and_scores(heads, kv_heads, branches, prefix, suffix):
    rng = np.random.default_rng(branches)
    dim, scale = 8, 0.35
    queries = rng.normal(size=(branches, heads, 1, dim))
    before = rng.normal(size=(2, 1, kv_heads, prefix, dim))
    after = rng.normal(size=(2, branches, kv_heads, suffix, dim))
    # In two pieces, where it is long enough: a prompt that others share, and what followed it.
    cuts = [0, prefix // 2, prefix] if prefix > 1 else [0, prefix]
    pieces = [
        KeysValues(*map(mx.array, before[..., start:end, :].astype(np.float32)))
        for start, end in itertools.pairwise(cuts)
    ]
    output, scores = attend_shared(
        mx.array(queries.astype(np.float32)),
        pieces,
        KeysValues(*map(mx.array, after.astype(np.float32))),
        scale,
    )
    for branch in range(branches):
        for head in range(heads):
            kv = head // (heads // kv_heads)
            keys = np.concatenate([before[0, 0, kv], after[0, branch, kv]])
            values = np.concatenate([before[1, 0, kv], after[1, branch, kv]])
            expected = keys @ queries[branch, head, 0] * scale
            weights = np.exp(expected - expected.max())
            weights /= weights.sum()
            np.testing.assert_allclose(scores[branch, head], expected, atol=1e-5)
            np.testing.assert_allclose(output[branch, head, 0], weights @ values, atol=1e-5)


@pytest.mark.parametrize("prefixes", [[3], [4, 2]])
@pytest.mark.parametrize("length", [1, 3])
def test_a_run_after_a_shared_prefix_is_causal_attention_over_all(prefixes, length):
    sizes = [*prefixes, 2 + length]
    keys = iter(mx.random.split(mx.random.key(5), 2 * len(sizes) + 1))
    pieces = [
        KeysValues(*(mx.random.normal((1, 2, size, 8), key=next(keys)) for _ in range(2)))
        for size in sizes
    ]
    queries = mx.random.normal((1, 6, length, 8), key=next(keys))
    joined = [mx.concatenate(part, axis=2) for part in zip(*pieces, strict=True)]
    expected = attend(queries, *joined, 0.3, "causal")
    assert mx.allclose(attend_block(queries, pieces, 0.3), expected, atol=1e-5)
