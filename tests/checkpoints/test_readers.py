"""The readers on valid files with some bits turned: an error of ours or a model, nothing else."""

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
from tests.folders import write_folder, write_gguf

pytestmark = pytest.mark.slow

MOST_MEMORY = 10**9
FUZZ = settings(
    max_examples=300,
    deadline=3000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def flips(size):
    """Draw some bits of the first bytes of a file to turn."""
    return st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 7)), min_size=1, max_size=4)


def turned(content, bits):
    changed = bytearray(content)
    for byte, bit in bits:
        changed[byte] ^= 1 << bit
    return bytes(changed)


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


@pytest.fixture
def little_memory():
    """Check that the largest resident set does not grow by a gigabyte."""
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    yield
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert after - before < MOST_MEMORY


@pytest.fixture(scope="module")
def folder(tmp_path_factory, byte_tokenizer):
    folder = tmp_path_factory.mktemp("folder")
    return write_folder(folder, make_tiny_model(num_hidden_layers=1), byte_tokenizer, shards=2)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    model = make_tiny_model(num_hidden_layers=1)
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("model-00001-of-00002.safetensors", 800),
        ("model.safetensors.index.json", 700),
        ("config.json", 480),
    ],
)
def test_a_folder_with_turned_bits(folder, name, size):
    file = folder / name
    content = file.read_bytes()
    assert read_all(folder) is None
    outcomes = set()

    @FUZZ
    @given(flips(min(size, len(content))))
    def attempt(bits):
        file.write_bytes(turned(content, bits))
        outcomes.add(type(read_all(folder)))

    try:
        attempt()
    finally:
        file.write_bytes(content)
    assert len(outcomes) > 1


@pytest.mark.usefixtures("little_memory")
@FUZZ
@given(data=st.data())
def test_a_gguf_with_turned_bits(gguf, data):
    content = gguf.read_bytes()
    damaged = gguf.with_name("damaged.gguf")
    table = content.index(b"blk.0.")
    bits = data.draw(flips(64) | flips(table + 1200) | flips(len(content)))
    damaged.write_bytes(turned(content, bits))
    read_all(damaged)


@pytest.mark.usefixtures("little_memory")
@FUZZ
@given(size=st.floats(0, 1, exclude_max=True))
def test_a_gguf_cut_short(gguf, size):
    content = gguf.read_bytes()
    damaged = gguf.with_name("damaged.gguf")
    damaged.write_bytes(content[: int(size * len(content))])
    assert read_all(damaged) is not None
