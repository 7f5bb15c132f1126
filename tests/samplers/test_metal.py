"""What can be said about Metal without one: every operation of a step has an implementation there.

The graph is that of the machine that runs the tests. On the CPU, the fast kernels (RMS norm, rotary
embedding, attention) are spelt out in simpler operations, each of which a GPU has as well.
"""

import re
import shutil

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Profile
from entropix_mlx.engine.passes import Entry, Lane, Pass
from entropix_mlx.engine.prompts import read_prompt
from entropix_mlx.engine.sequence import Sequence
from entropix_mlx.models import caches
from entropix_mlx.samplers import metrics
from entropix_mlx.samplers import position as module
from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.position import sample
from entropix_mlx.samplers.registry import SAMPLERS, make_sampler
from entropix_mlx.settings import ResolvedSettings, Settings

pytestmark = pytest.mark.as_gpu

NO_GPU = {"LUF", "QRF", "SVD", "Inverse", "Cholesky", "Eig", "Eigh"}
"""Primitives whose eval_gpu raises in MLX's Metal backend (mlx/backend/metal/primitives.cpp) or its
CUDA backend (mlx/backend/cuda/primitives.cpp), as of MLX 0.32: linear algebra."""
LABEL = re.compile(r'label ="(\w+)", shape=rectangle')


VIEWS = {
    *("Broadcast", "Squeeze", "ExpandDims", "Slice", "Reshape"),
    *("Transpose", "Split", "Flatten", "Unflatten", "AsStrided"),
}
"""Primitives that compute nothing: they view an array another way."""
VOCABULARY = 4096


def nodes(folder, *arrays):
    file = folder / "graph.dot"
    mx.export_to_dot(str(file), *arrays)
    return LABEL.findall(file.read_text())


def primitives(folder, *arrays):
    return set(nodes(folder, *arrays))


@pytest.fixture
def unqueued(monkeypatch):
    """Leave graphs as they are built: what was computed has no graph any more."""
    monkeypatch.setattr(mx, "async_eval", lambda *arrays: None)


def queue_after(model, tokenizer, sampler, attention_layers, rows=1):
    """Queue a position: of a text, or of as many texts in one batch."""
    settings = Settings(attention_layers=attention_layers, top_logprobs=5, seed=0)
    resolved = ResolvedSettings(settings, sampler, 0)
    entries, read = [], []
    for _ in range(rows):
        cache = model.make_cache()
        read_prompt(model, [1, 2, 3], cache)
        read.append(cache)
        entry = Entry(Sequence(model, tokenizer, [1, 2, 3, 4], resolved), 3)
        entry.known = 4
        entries.append(entry)
    lane = Lane(entries, read[0] if rows == 1 else caches.merge(read))
    mx.eval(model.inner.parameters(), caches.arrays(lane.cache))
    queued = Pass(model, [lane])
    queued.sample()
    return queued


def arrays_of(queued):
    return [array for _, found in queued.sampled for array in (found.packed, found.token)]


def test_the_list_is_read_from_a_graph(tmp_path):
    with mx.stream(mx.cpu):
        inverse = mx.linalg.inv(mx.eye(3))
    assert primitives(tmp_path, inverse) & NO_GPU == {"Inverse"}


CHANGES = {
    "logit_bias": {3: 1.0},
    "repetition_penalty": 1.2,
    "presence_penalty": 0.1,
}
STEPS = [
    *((name, layers, 1, {}) for name in SAMPLERS for layers in ("last", "all")),
    ("entropix", "all", 3, {}),
    ("entropix", "last", 1, CHANGES),
]


@pytest.mark.parametrize(("sampler", "layers", "rows", "given"), STEPS)
def test_a_decoding_step(
    sampler, layers, rows, given, tiny_model, byte_tokenizer, tmp_path, unqueued
):
    made = make_sampler(sampler, given=given)
    queued = queue_after(tiny_model, byte_tokenizer, made, layers, rows)
    used = primitives(tmp_path, *arrays_of(queued))
    assert {"Matmul", "Softmax"} <= used
    assert not used & NO_GPU


def test_a_draw_of_different_tokens(tiny_model, byte_tokenizer, tmp_path, unqueued, monkeypatch):
    graphs = []
    queued = queue_after(tiny_model, byte_tokenizer, make_sampler("entropix"), "last")

    def export(array):
        graphs.append(primitives(tmp_path, array))
        return array.tolist()

    monkeypatch.setattr("entropix_mlx.samplers.draw.numbers", export)
    [[row]] = queued.read()
    assert len(row.openings(3)) == 3
    assert graphs
    assert not graphs[0] & NO_GPU


@pytest.fixture
def compiled(monkeypatch):
    if not shutil.which("g++"):
        pytest.skip("compiling for the CPU needs g++")
    monkeypatch.setenv("ENTROPIX_COMPILE", "1")


def a_position(sampler, keys=50, seed=0, scale=3.0, rows=2, top_logprobs=3):
    logits = scale * mx.random.normal((rows, VOCABULARY), key=mx.random.key(seed))
    scores = mx.random.normal((rows, 4, keys), key=mx.random.key(seed + 1))
    randomness = mx.array([uniforms(seed, keys, sampler.draws)])
    mx.eval(logits, scores, randomness)
    changed = None
    if sampler.penalties is not None:
        text = mx.arange(seed, seed + 9)
        one_by_one = [sampler.penalties(logits[row : row + 1], text, 4) for row in range(rows)]
        changed = mx.concatenate(one_by_one)
    measured = metrics.measure_attention([scores])
    return sample(sampler, logits, measured, randomness, top_logprobs, changed=changed)


def kernels(folder, sampler):
    queued = a_position(make_sampler(sampler), rows=1, top_logprobs=0)
    return sum(node not in VIEWS for node in nodes(folder, queued.packed, queued.token))


@pytest.mark.parametrize(("sampler", "most"), [("entropix", 100), ("greedy", 60)])
def test_kernels_after_the_forward_pass(sampler, most, tmp_path):
    assert kernels(tmp_path, sampler) <= most


@pytest.mark.parametrize(("sampler", "most"), [("entropix", 51), ("greedy", 35)])
def test_kernels_where_they_are_compiled(sampler, most, tmp_path, compiled):
    assert kernels(tmp_path, sampler) <= most


@pytest.mark.slow
# A kernel takes g++ a second, and a sampler has up to 20: these have all kinds of them.
@pytest.mark.parametrize(
    ("sampler", "given"),
    [("entropix", {}), ("entropix", CHANGES), ("top_p", {}), ("xtc", {})],
)
@pytest.mark.parametrize("scale", [0.1, 3.0, 12.0])
def test_compiled_or_not_gives_the_same(sampler, given, scale, compiled, monkeypatch):
    sampler = make_sampler(sampler, given=given)
    many = [a_position(sampler, 20 + seed, seed, scale) for seed in range(6)]
    monkeypatch.delenv("ENTROPIX_COMPILE")
    plain = [a_position(sampler, 20 + seed, seed, scale) for seed in range(6)]
    for one, other in zip(many, plain, strict=True):
        np.testing.assert_allclose(one.packed, other.packed, rtol=1e-5, atol=1e-5)
        assert one.token.tolist() == other.token.tolist()


@pytest.fixture
def traces(monkeypatch):
    """Count how often each half of a position is traced."""
    counts = {"position": 0, "attention": 0}

    def counted(name, function):
        def call(*arguments):
            counts[name] += 1
            return function(*arguments)

        return call

    monkeypatch.setattr(module, "_decide", counted("position", module._decide))
    monkeypatch.setattr(metrics, "attention_sums", counted("attention", metrics.attention_sums))
    compiled = [module._compiled, metrics._compiled_sums]
    for function in compiled:
        function.cache_clear()
    yield counts
    for function in compiled:
        function.cache_clear()


@pytest.mark.slow
def test_a_growing_text_compiles_once(compiled, traces):
    sampler = make_sampler("entropix")
    for keys in range(30, 50):
        a_position(sampler, keys).read()
    assert traces == {"position": 1, "attention": 1}


PROFILES = {
    "entropix": {"thresholds": {"low_entropy": 0.2}, "base": {"temperature": 0.8}},
    "top_p": {"baselines": {"top_p": 0.5, "temperature": 1.3}},
}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", PROFILES)
def test_another_profile_compiles_nothing(sampler, compiled, traces):
    for profile in (Profile.load(), Profile.load().replace(PROFILES[sampler])):
        a_position(make_sampler(sampler, profile)).read()
    assert traces == {"position": 1, "attention": 1}
