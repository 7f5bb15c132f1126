"""What three ranks run: each compares its model with the whole one, and prints what it found."""

import json
import sys

import mlx.core as mx

from entropix_mlx.models import caches, ranks
from entropix_mlx.models.base import LanguageModel
from tests.architectures import make

DIVISIBLE = {"num_attention_heads": 6, "num_key_value_heads": 3, "moe_intermediate_size": 24}
TOKENS = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])


def passes(model: LanguageModel) -> list[mx.array]:
    """Return the logits and shares of a prompt, and of a batch that begins with it."""
    cache, other = model.make_cache(), model.make_cache()
    first = model(TOKENS, cache, "all", queries=2)
    model(TOKENS[:, :3], other, measure=False)
    second = model(mx.array([[7], [8]]), caches.merge([cache, other]), "all")
    scores = [*first.scores, *second.scores]
    return [first.logits, second.logits, *(mx.softmax(layer, axis=-1) for layer in scores)]


def difference(kind: str, group: mx.distributed.Group) -> float:
    expected = passes(LanguageModel(*make(kind, **DIVISIBLE)))
    inner, config = make(kind, **DIVISIBLE)
    ranks.split(inner, config, group)
    model = LanguageModel(inner, config, group)
    model.warm_up()
    found = passes(model)
    pairs = zip(found, expected, strict=True)
    return max(float(mx.abs(one - other).max()) for one, other in pairs)


def main() -> None:
    group = ranks.launched()
    differences = {kind: difference(kind, group) for kind in sys.argv[1:]}
    text = "é" * 3000
    shared = ranks.share({"from": group.rank(), "text": text}, group)
    least = ranks.least(10 + group.rank(), group)
    same = shared == {"from": 0, "text": text}
    # The launcher passes on what was printed in pieces of some 8 kB, of any rank: keep it short.
    record = {"differences": differences, "shared": same, "least": least}
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
