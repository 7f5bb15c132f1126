"""The readers on valid files that were damaged: an error of ours or a model, nothing else."""

import os
import resource
import sys

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entropix_mlx.checkpoints.locate import open_checkpoint
from entropix_mlx.checkpoints.skeleton import load_tokenizer, make_skeleton
from entropix_mlx.errors import EntropixError
from tests.conftest import make_tiny_model
from tests.folders import write_folder, write_gguf, write_meta

pytestmark = pytest.mark.slow

ATTEMPTS = 200 if "FUZZ_TIMES" in os.environ else 60
"""For each file; tests/fuzz damages more of them."""
MOST_MEMORY = 10**9
FILES = {  # by the folder or file that is read: the files that are damaged
    "folder": ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json"],
    "tiny.gguf": ["."],
    "meta": ["consolidated.00.pth", "params.json"],
}


def read_all(path):
    """Do what loading does, up to the point where the model would run."""
    try:
        checkpoint = open_checkpoint(path)
        model, tensors = make_skeleton(checkpoint)
        mx.eval([tensor.read() for tensor in tensors.values()])
        load_tokenizer(checkpoint, model.config.vocab_size)
    except EntropixError as error:
        return error
    return None


@pytest.fixture(scope="module")
def models(tmp_path_factory, byte_tokenizer):
    root, model = tmp_path_factory.mktemp("models"), make_tiny_model(num_hidden_layers=1)
    write_folder(root / "folder", model, byte_tokenizer, shards=2)
    write_gguf(root / "tiny.gguf", model)
    (root / "meta").mkdir()
    write_meta(root / "meta")
    return root


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in FILES for name in FILES[path]])
def test_a_file_with_turned_bits_or_cut_short(models, path, name):
    file = models / path / name
    content = file.read_bytes()
    assert read_all(models / path) is None
    outcomes = set()
    places = st.integers(0, min(799, len(content) - 1)) | st.integers(0, len(content) - 1)
    flips = st.lists(st.tuples(places, st.integers(0, 7)), min_size=1, max_size=4)

    @settings(max_examples=ATTEMPTS, deadline=3000, suppress_health_check=[HealthCheck.too_slow])
    @given(flips, st.none() | st.integers(0, len(content) - 1))
    def attempt(bits, end):
        changed = bytearray(content)
        for byte, bit in bits:
            changed[byte] ^= 1 << bit
        file.write_bytes(changed[:end])
        outcomes.add(type(read_all(models / path)))

    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    try:
        attempt()
    finally:
        file.write_bytes(content)
    assert len(outcomes) > 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before < MOST_MEMORY
