"""What ranks run: rank 0 answers with its share of a model, and with all of it, and compares.

Given a model folder, and the names of scenarios unless it is to be all, rank 0 prints a JSON
object: by scenario, what differed and by how much.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from entropix_mlx.commands.ranks import coordinator, worker
from entropix_mlx.distributed.environment import of_environment

THINKS = {
    "thresholds": {"low_entropy": 0.0, "think_min_entropy": 0.0, "think_max_varentropy": 99.0},
    "think": {"text": " Wait,", "max_insertions": 3, "min_gap": 4},
}
REPEATS = "one two three four one two three four one two three four one two"


def scenarios():
    """Yield a name, and a function of a model and a tokenizer that returns steps."""
    import mlx.core as mx

    from entropix_mlx import batch_generate, stream_generate
    from entropix_mlx.api.score import score
    from entropix_mlx.chat.session import Session
    from entropix_mlx.settings import Settings

    def answered(prompt, **options):
        def run(model, tokenizer):
            return list(stream_generate(model, tokenizer, prompt, seed=1, **options))

        return run

    yield "forks", answered("hello", max_tokens=16, attention_layers="all")
    yield "thinks", answered("hello", max_tokens=8, changes=THINKS)
    yield "guesses", answered(REPEATS, max_tokens=8, speculation=4, sampler="greedy", stop=("zz",))

    def batch(model, tokenizer):
        prompts = ["hello", "hello", "a longer prompt than that", REPEATS]
        done = batch_generate(
            model, tokenizer, prompts, seed=2, max_tokens=5, speculation=3, steady=True
        )
        return [step for answer in done.finish() for step in answer.steps]

    yield "batch", batch

    def chat(model, tokenizer):
        session = Session(model, tokenizer, Settings(max_tokens=4, seed=3))
        first = list(session.send("hello"))
        fork = list(session.fork(1, 65))
        again = list(session.send("and then?"))
        return first + fork + again

    yield "chat", chat

    def read(model, tokenizer):
        return score(model, tokenizer, REPEATS[:24], attention_layers="all")

    yield "read", read

    def called(model, _):
        return model(mx.array([[1, 2, 3]])).logits[0, -1].tolist()

    yield "called", called


def difference(one, other):
    """Return what two lists of steps, or of numbers, differ in: a text, or a number."""
    if len(one) != len(other):
        return f"{len(one)} and {len(other)}"
    largest = 0.0
    for a, b in zip(one, other, strict=True):
        if isinstance(a, float):
            largest = max(largest, abs(a - b))
            continue
        for name in ("token", "strategy", "origin", "rolled_back", "proposed", "accepted"):
            if getattr(a, name) != getattr(b, name):
                return f"step {a.index}: {name} {getattr(a, name)} and {getattr(b, name)}"
        pairs = zip(a.metrics, b.metrics, strict=True)
        largest = max([largest, *(abs(mine - theirs) for mine, theirs in pairs)])
    return largest


def compare(ranks, folder, *names):
    import mlx.core as mx

    from entropix_mlx.checkpoints.loading import Extras, load

    whole, tokenizer = load(folder)
    before = mx.get_active_memory()
    share, _ = ranks.load(model=folder, dequantize=None, extras=Extras())
    memory = (mx.get_active_memory() - before) / before
    found = {}
    for name, run in scenarios():
        if names and name not in names:
            continue
        one, other = run(whole, tokenizer), run(share, tokenizer)
        found[name] = [len(one), difference(one, other)]
    print(json.dumps({"found": found, "memory": memory}))
    return 0


def main():
    place = of_environment()
    if place.rank:
        worker.work(place, lambda ranks: 0)
    coordinator.coordinate(place, lambda ranks: compare(ranks, *sys.argv[1:]))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
