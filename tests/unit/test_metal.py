"""What can be said about Metal without one: every operation of a step has an implementation there.

The graph is that of the machine that runs the tests. On the CPU, the fast kernels (RMS norm, rotary
embedding, attention) are spelt out in simpler operations, each of which a GPU has as well.
"""

import re

import mlx.core as mx
import pytest

from entropix_mlx import Profile
from entropix_mlx.decoding.engine import Engine, Group, Sampling
from entropix_mlx.decoding.text import Branches, Text
from entropix_mlx.policies.registry import POLICIES, make_policy

NO_GPU = {"LUF", "QRF", "SVD", "Inverse", "Cholesky", "Eig", "Eigh"}
"""Primitives whose eval_gpu raises in MLX's Metal backend (mlx/backend/metal/primitives.cpp) or its
CUDA backend (mlx/backend/cuda/primitives.cpp), as of MLX 0.32: linear algebra."""
LABEL = re.compile(r'label ="(\w+)", shape=rectangle')


def primitives(folder, *arrays):
    file = folder / "graph.dot"
    mx.export_to_dot(str(file), *arrays)
    return set(LABEL.findall(file.read_text()))


@pytest.fixture
def unqueued(monkeypatch):
    """Leave graphs as they are built: what was computed has no graph any more."""
    monkeypatch.setattr(mx, "async_eval", lambda *arrays: None)


def queue_after(model, policy, attention_layers, rows=1):
    """Queue a position: of a text, or of as many rollouts that go on from it."""
    text = Text(model.make_cache())
    model(mx.array([[1, 2, 3]]), text.layers)
    mx.eval(model.parameters(), text.arrays())
    layers = text.layers
    if rows > 1:
        (group,) = Branches(text, rows).select(range(rows))
        layers = group.layers
    sampling = Sampling(policy, 0, attention_layers, top_logprobs=5)
    return Engine(model).queue([Group(layers, mx.arange(1, rows + 1), sampling)])


def test_the_list_is_read_from_a_graph(tmp_path):
    with mx.stream(mx.cpu):
        inverse = mx.linalg.inv(mx.eye(3))
    assert primitives(tmp_path, inverse) & NO_GPU == {"Inverse"}


@pytest.mark.parametrize("attention_layers", ["last", "all"])
@pytest.mark.parametrize("sampler", POLICIES)
def test_a_decoding_step(sampler, attention_layers, tiny_model, tmp_path, unqueued):
    policy = make_policy(sampler, Profile.load())
    pending = queue_after(tiny_model, policy, attention_layers)
    used = primitives(tmp_path, *pending.arrays())
    assert {"Matmul", "Softmax"} <= used
    assert not used & NO_GPU


def test_a_step_of_branches_over_a_shared_prefix(tiny_model, tmp_path, unqueued):
    pending = queue_after(tiny_model, make_policy("entropix"), "all", rows=3)
    used = primitives(tmp_path, *pending.arrays())
    assert {"Matmul", "Softmax"} <= used
    assert not used & NO_GPU


def test_a_draw_of_different_tokens(tiny_model, tmp_path, unqueued, monkeypatch):
    graphs = []
    pending = queue_after(tiny_model, make_policy("entropix"), "last")

    def export(array):
        graphs.append(primitives(tmp_path, array))
        return array.tolist()

    monkeypatch.setattr("entropix_mlx.policies.draw.numbers", export)
    assert len(pending.position(0).openings(3)) == 3
    assert graphs
    assert not graphs[0] & NO_GPU
