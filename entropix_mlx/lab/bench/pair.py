"""One model, loaded by this package and by mlx-lm."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_reduce
from mlx_lm.models.cache import KVCache
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...api.generate import stream_generate
from ...conversion.convert import save
from ...engine.speculation.draft_model import DraftModel
from ...errors import BenchError
from ...models.llama.model import Model
from ...profiles.profile import Profile
from ...step import Step

GREEDY = "mlx-lm greedy"
SAMPLED = "mlx-lm sampled"
LAST = "entropix"
ALL = "entropix, all layers"

PARAMETERS = {"temperature": 0.666, "top_p": 0.9, "top_k": 27, "min_p": 0.03}
"""The base parameters of the published sampler: what mlx-lm's chain of filters is given."""
UNINTERRUPTED = Profile.load().replace(
    {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}
)
SEED = 0
PROMPT = [0]
"""The one token that follows a made-up cache."""


@dataclass(frozen=True)
class Pair:
    """A model loaded twice. No token ends a text here, so that all runs are equally long."""

    model: Model
    tokenizer: TokenizerWrapper
    ending: TokenizerWrapper
    """The same, but for the tokens that end a text."""
    other: Any
    other_tokenizer: TokenizerWrapper
    folder: Path
    draft: DraftModel | None = None

    def ours(self, prompt: list[int], tokens: int, **options: Any) -> Iterator[Step]:
        """Return entropix's steps; takes the options of `stream_generate`.

        Nothing is proposed unless the options say so: each token takes a pass, as with mlx-lm.
        """
        options = {"speculation": "off"} | options
        return stream_generate(
            self.model, self.tokenizer, prompt, max_tokens=tokens, seed=SEED, **options
        )

    def drain(self, prompt: list[int], tokens: int, **options: Any) -> None:
        for _ in self.ours(prompt, tokens, **options):
            pass

    def theirs(self, prompt: list[int], tokens: int, **options: Any) -> Iterator[object]:
        """Return mlx-lm's responses; takes the options of its `stream_generate`."""
        return iter(
            mlx_lm.stream_generate(
                self.other, self.other_tokenizer, prompt, max_tokens=tokens, **options
            )
        )


@contextmanager
def make_pair(
    model: Model, tokenizer: TokenizerWrapper, draft: DraftModel | None = None
) -> Iterator[Pair]:
    """Write a model to a temporary folder, and let mlx-lm load it in the same precision.

    Raises:
        BenchError: the folder cannot be written.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            save(model, tokenizer, folder)
        except OSError as error:
            megabytes = weight_bytes(model) / 1e6
            raise BenchError(
                f"{name} cannot be written: {error}; the bench needs {megabytes:.0f} MB there, or"
                " in the folder that TMPDIR names"
            ) from error
        other, other_tokenizer = mlx_lm.load(name)[:2]
        yield Pair(
            model, _endless(tokenizer), tokenizer, other, _endless(other_tokenizer), folder, draft
        )


def _endless(tokenizer: TokenizerWrapper) -> TokenizerWrapper:
    endless = copy.copy(tokenizer)
    endless._eos_token_ids = set()
    return endless


def made_up_cache(model: Model, length: int) -> list[KVCache]:
    """Return a cache of `length` tokens with random keys and values.

    The cost of a step does not depend on the numbers. All layers share one array of keys and one of
    values until they grow.
    """
    probe = model.make_cache()
    model(mx.array([[0]]), probe)
    keys, _ = probe[0].keys_and_values()
    shape = (*keys.shape[:2], length, keys.shape[3])
    made_up = [mx.random.normal(shape, key=mx.random.key(n)).astype(keys.dtype) for n in (0, 1)]
    mx.eval(made_up)
    cache = model.make_cache()
    for layer in cache:
        layer.keys, layer.values = made_up
        layer.offset = length
    return cache


def copies(cache: Sequence[KVCache]) -> list[KVCache]:
    """Return caches with the same content, each to grow on its own."""
    copied = []
    for layer in cache:
        own = KVCache()
        # The arrays are exactly full, so the cache copies them when it grows, and never writes to
        # those of the original.
        own.keys, own.values = layer.keys_and_values()
        own.offset = layer.offset
        copied.append(own)
    return copied


def chain(parameters: Mapping[str, float] = PARAMETERS) -> Callable[[mx.array], mx.array]:
    """Return mlx-lm's chain of filters and its draw: log probabilities `(1, vocab)` to a token."""
    sampler: Callable[[mx.array], mx.array] = make_sampler(
        temp=parameters["temperature"],
        top_p=parameters["top_p"],
        min_p=parameters["min_p"],
        top_k=int(parameters["top_k"]),
    )
    return sampler


def weight_bytes(model: Any) -> int:
    return int(tree_reduce(lambda total, array: total + array.nbytes, model.parameters(), 0))
