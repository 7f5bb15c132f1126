"""GGUF files that were damaged: a message or a true result, no more."""

import mlx.core as mx
import pytest

from tests.conftest import make_tiny_model
from tests.folders import metadata_of, tensors_of
from tests.fuzz.conftest import times
from tests.fuzz.mutations import damaged_bytes

ANSWER = ["-p", "Hi", "-m", "2", "--ignore-chat-template"]
METADATA = [
    *(0, 1, -1, 2**31 - 1, 1.5, 1e38, float("nan"), True, "", "x", "llama-bpe", ["a", "b"]),
    *([1, 2], [1.5], [""], ["a b", "c"]),
]


@pytest.fixture(scope="module")
def gguf():
    """The tensors and the metadata of a GGUF file."""
    model = make_tiny_model(num_hidden_layers=1)
    extra = {
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eot_token_id": mx.array(5),
        "tokenizer.chat_template": "{{ messages }}",
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": mx.array(2.0),
    }
    return tensors_of(model), metadata_of(model) | extra


def is_text(value):
    return isinstance(value, str) or (isinstance(value, list) and isinstance(value[0], str))


def test_the_metadata_of_a_gguf_file(run, gguf, tmp_path, random):
    tensors, metadata = gguf
    file = tmp_path / "model.gguf"
    for _ in times(10):
        key, value = random.choice(list(metadata)), random.choice(METADATA)
        stored = value if is_text(value) else mx.array(value)
        mx.save_gguf(str(file), tensors, metadata | {key: stored})
        run("generate", "--model", file, *ANSWER, what=f"{key}: {value}")


def test_the_header_of_a_gguf_file(run, gguf, tmp_path, random):
    file = tmp_path / "model.gguf"
    mx.save_gguf(str(file), *gguf)
    content = file.read_bytes()
    end = content.rindex(b"output_norm.weight") + 100
    for _ in times(10):
        file.write_bytes(damaged_bytes(content[:end], random) + content[end:])
        run("generate", "--model", file, *ANSWER)
