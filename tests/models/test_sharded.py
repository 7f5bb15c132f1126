"""What each rank reads of a model, without other ranks: parts of tensors, and what is refused."""

from __future__ import annotations

import json
import shutil

import mlx.core as mx
import mlx.nn as nn
import pytest

from entropix_mlx.checkpoints.checkpoint import digest
from entropix_mlx.checkpoints.loading import Extras, load
from entropix_mlx.checkpoints.locate import open_checkpoint
from entropix_mlx.checkpoints.skeleton import shape_of, shared_out
from entropix_mlx.conversion import convert
from entropix_mlx.conversion.recipe import Recipe
from entropix_mlx.distributed.environment import ADDRESS, PATIENCE, of_environment
from entropix_mlx.distributed.group import Group
from entropix_mlx.errors import GroupError, UnsupportedModelError, WeightsError
from entropix_mlx.models.config import LlamaConfig
from entropix_mlx.models.sharded.model import (
    check_fits,
    fits,
    share_of,
    share_vocabulary,
    token_range,
)
from tests import architectures
from tests.conftest import TINY, make_byte_tokenizer, make_tiny_model
from tests.folders import write_gguf

HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three") / "model"
    folder.mkdir()
    model = make_tiny_model(**HEADS, intermediate_size=96, attention_bias=True, num_hidden_layers=1)
    convert.save(model, make_byte_tokenizer(), folder)
    return folder


def parts(checkpoint, size):
    shape = shape_of(checkpoint)
    shares = [shared_out(checkpoint, shape, rank, size).tensors for rank in range(size)]
    return {name: [share[name].read() for share in shares] for name in checkpoint.tensors}


def joined(name, arrays):
    """Put the parts of a tensor together again, as the layers' outputs are."""
    if "norm" in name:
        return arrays[0]
    if name.endswith(("o_proj.bias", "down_proj.bias")):
        return sum(arrays)
    columns = "o_proj" in name or "down_proj" in name
    return mx.concatenate(arrays, axis=1 if columns else 0)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "kind", ["dense", pytest.param("bfloat16", marks=pytest.mark.bfloat16), "packed"]
)
def test_the_parts_of_all_ranks_are_the_whole(folder, tmp_path, size, kind):
    if kind != "dense":
        packed = Recipe(bits=4, group_size=32) if kind == "packed" else None
        made = convert.convert(folder, tmp_path / kind, packed or Recipe(dtype="bfloat16"))
    checkpoint = open_checkpoint(folder if kind == "dense" else made)
    for name, arrays in parts(checkpoint, size).items():
        whole = checkpoint.tensors[name].read()
        assert joined(name, arrays).dtype == whole.dtype, name
        assert mx.array_equal(joined(name, arrays), whole).item(), name


def test_a_rank_reads_only_its_part(folder, monkeypatch):
    checkpoint = open_checkpoint(folder)
    share = shared_out(checkpoint, shape_of(checkpoint), 1, 3)
    monkeypatch.setattr(mx, "load", None)  # which would read whole tensors
    cut = [tensor for tensor in share.tensors.values() if len(tensor.shape) == 2]
    read = [tensor.read().nbytes for tensor in cut]
    whole = sum(mx.zeros(t.shape, t.dtype).nbytes for t in checkpoint.tensors.values())
    assert 0.3 * whole < sum(read) < 0.34 * whole


def test_a_width_in_groups_is_split_between_them_only(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    model = make_tiny_model(intermediate_size=192, num_hidden_layers=1)  # three groups of 64
    convert.save(model, make_byte_tokenizer(), folder)
    checkpoint = open_checkpoint(convert.convert(folder, tmp_path / "packed", Recipe(bits=4)))
    with pytest.raises(UnsupportedModelError, match="smaller groups"):
        parts(checkpoint, 2)


def test_gguf_and_its_order_of_rows(tmp_path):
    model = make_tiny_model(**HEADS, num_hidden_layers=1)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model))
    for name, arrays in parts(checkpoint, 3).items():
        assert mx.array_equal(joined(name, arrays), checkpoint.tensors[name].read()).item(), name
    assert len(digest(checkpoint)) == 64


@pytest.mark.parametrize(
    ("heads", "said"), [((9, 3, 1536), "over 3 ranks"), ((7, 7, 100), "not at all")]
)
def test_heads_that_do_not_divide_are_refused_with_what_would_fit(heads, said):
    sizes = dict(
        zip(("num_attention_heads", "num_key_value_heads", "intermediate_size"), heads, strict=True)
    )
    config = LlamaConfig(**(TINY | sizes))
    with pytest.raises(UnsupportedModelError, match=said):
        check_fits(config, 2, "here")


class Ranks:
    """What MLX says of a group, where nothing is computed."""

    def __init__(self, size):
        self.size = lambda: size
        self.rank = lambda: 0


@pytest.mark.parametrize(("kind", "size"), [("gpt_oss", 3), ("gemma2", 2)])
def test_what_mlx_lm_cannot_split_is_refused_with_what_to_do(tmp_path, kind, size):
    made, config = architectures.make(kind)
    architectures.save(made, config, tmp_path)
    make_byte_tokenizer().save_pretrained(tmp_path)
    group = Group(Ranks(size))
    with pytest.raises(UnsupportedModelError, match="--mode data"):
        load(tmp_path, group=group)
    with pytest.raises(UnsupportedModelError, match="merge them"):
        load(tmp_path, extras=Extras(adapter_path="there"), group=group)


def test_mlx_lm_splits_folders_only(tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", make_tiny_model(**HEADS, num_hidden_layers=1))
    with pytest.raises(UnsupportedModelError, match="take the model's folder"):
        load(file, tapped=True, group=Group(Ranks(3)))


@pytest.mark.parametrize("vocabulary", [258, 256, 257])
def test_every_token_has_one_rank(vocabulary):
    ranges = [token_range(vocabulary, rank, 3) for rank in range(3)]
    assert [token for own in ranges for token in own] == list(range(vocabulary))
    assert len({len(own) for own in ranges[:-1]}) == 1


class Deaf:
    """A rank that hears nothing of the others: sums and gathers have its own share alone."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def total(self, x):
        return x

    def gathered(self, x):
        return x


class Toy(nn.Module):
    def __init__(self, vocabulary, packed):
        super().__init__()
        self.model = {"embed_tokens": nn.Embedding(vocabulary, 64), "experts": nn.Linear(64, 64)}
        self.lm_head = nn.Linear(64, vocabulary)
        self.router = nn.Linear(64, vocabulary)
        if packed:
            nn.quantize(self, group_size=32, bits=3)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("vocabulary", [96, 100])
def test_each_rank_has_some_rows_of_an_embedding_and_a_head_of_mlx_lm(vocabulary, packed):
    tokens, states = mx.arange(vocabulary)[None], mx.random.normal((1, 2, 64), key=mx.random.key(1))

    def made():
        mx.random.seed(0)
        return Toy(vocabulary, packed)

    whole, found = made(), []
    for rank in range(3):
        model = made()
        share_vocabulary(model, Deaf(rank, 3))
        embedding, own = model.model["embed_tokens"], token_range(vocabulary, rank, 3)
        assert embedding.part.weight.shape[0] == model.lm_head.part.weight.shape[0] == len(own)
        assert type(model.router) is type(whole.router)
        found.append((embedding(tokens), embedding.as_linear(states), model.lm_head(states)))
    embedding = whole.model["embed_tokens"]
    assert mx.array_equal(sum(one[0] for one in found), embedding(tokens))
    for place, logits in ((1, embedding.as_linear(states)), (2, whole.lm_head(states))):
        joined = mx.concatenate([one[place] for one in found], axis=-1)[..., :vocabulary]
        assert mx.allclose(joined, logits, atol=1e-5)


def test_a_vocabulary_with_no_token_for_a_rank_stays_whole():
    model = Toy(4, packed=False)
    share_vocabulary(model, Deaf(0, 3))
    assert type(model.lm_head) is nn.Linear


def test_a_share_is_a_smaller_model():
    config = LlamaConfig(**(TINY | HEADS))
    share = share_of(config, 2, 3)
    assert fits(config, 3)
    assert not fits(config, 2)
    assert (share.num_attention_heads, share.num_key_value_heads, share.vocab_size) == (2, 1, 86)
    assert (share.head_dim, share.hidden_size) == (config.head_dim, config.hidden_size)


def test_a_digest_knows_a_model_by_what_is_in_it(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "elsewhere")
    assert digest(open_checkpoint(other)) == digest(open_checkpoint(folder))
    file = other / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    assert digest(open_checkpoint(other)) != digest(open_checkpoint(folder))
    shutil.copy(folder / file.name, file)
    with (other / "tokenizer.json").open("a") as tokenizer:
        tokenizer.write(" ")
    assert digest(open_checkpoint(other)) != digest(open_checkpoint(folder))


def test_a_file_that_is_gone_is_told(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "elsewhere")
    checkpoint = open_checkpoint(other)
    shared = shared_out(checkpoint, shape_of(checkpoint), 0, 3)
    (other / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        digest(checkpoint)
    with pytest.raises(WeightsError, match="cannot be read"):
        shared.tensors["model.embed_tokens.weight"].read()


def hostfile(tmp_path, *nodes):
    file = tmp_path / "hosts.json"
    file.write_text(json.dumps([[node] for node in nodes]) if nodes else "")
    return {"MLX_HOSTFILE": str(file)}


def test_the_launcher_says_which_rank_this_is(tmp_path):
    ring = hostfile(tmp_path, "10.0.0.1:5001", "10.0.0.2:5002")
    place = of_environment(ring | {"MLX_RANK": "1"})
    assert (place.rank, place.size, place.address) == (1, 2, ("10.0.0.1", 5000))
    assert place.name(1) == "rank 1 (10.0.0.2)"
    assert of_environment(ring | {"MLX_RANK": "1", PATIENCE: "60"}).patience == 60
    here = hostfile(tmp_path, "127.0.0.1:5001", "127.0.0.1:5002")
    assert of_environment(here | {"MLX_RANK": "1"}).patience < place.patience
    ring = hostfile(tmp_path, "10.0.0.1:5001", "10.0.0.2:5002")
    with pytest.raises(GroupError, match=PATIENCE):
        of_environment(ring | {"MLX_RANK": "1", PATIENCE: "long"})
    elsewhere = of_environment(ring | {"MLX_RANK": "0", ADDRESS: "studio.local:70"})
    assert elsewhere.address == ("studio.local", 70)
    devices = tmp_path / "devices.json"
    devices.write_text('[[null, "a"], ["b", null]]')
    jaccl = {"MLX_IBV_DEVICES": str(devices), "MLX_JACCL_COORDINATOR": "10.0.0.1:900"}
    assert of_environment(jaccl | {"MLX_RANK": "0"}).address == ("10.0.0.1", 899)
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    assert of_environment(mpi | {ADDRESS: "10.0.0.1:80"}).rank == 1
    with pytest.raises(GroupError, match=f"set {ADDRESS}"):
        of_environment(mpi)


def test_one_process_is_alone(tmp_path):
    assert of_environment({}) is None
    assert of_environment(hostfile(tmp_path) | {"MLX_RANK": "0"}) is None
    assert of_environment(hostfile(tmp_path, "10.0.0.1:5001") | {"MLX_RANK": "0"}) is None
    with pytest.raises(GroupError, match="MLX_RANK"):
        of_environment(hostfile(tmp_path, "a:5001", "b:5002") | {"MLX_RANK": "3"})
    with pytest.raises(GroupError, match="missing"):
        of_environment({"MLX_HOSTFILE": str(tmp_path / "missing"), "MLX_RANK": "0"})
