"""Measure the time to the first token of a second turn, with the first one cached and without.

    python benchmarks/second_turn.py [--model M] [--history 1500] [--repeats 5]

A session asks a question that holds a long text, then a short one. A fresh session with the same
messages must compute everything. The ratio is the median over the repeats.

Unlike `entropix bench`, it measures a whole `Session`, with a real conversation and its template.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import mlx.core as mx

from entropix_mlx import Session, Settings, load

PARAGRAPH = "The lighthouse keeper climbed the stairs, counted the ships, and wrote them down. "
QUESTION = "What did he count?"


def seconds_to_first_token(session: Session, question: str) -> float:
    began = time.perf_counter()
    next(session.send(question))
    elapsed = time.perf_counter() - began
    session.close()
    return elapsed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--history", type=int, default=1500, help="tokens")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model)
    per_paragraph = len(tokenizer.encode(PARAGRAPH))
    text = PARAGRAPH * (arguments.history // per_paragraph + 1)
    settings = Settings(max_tokens=8, sampler="greedy")
    cached, whole = [], []
    for _ in range(arguments.repeats):
        session = Session(model, tokenizer, settings)
        list(session.send(text))
        history = session.cached_tokens
        cached.append(seconds_to_first_token(session, QUESTION))
        fresh = Session(model, tokenizer, settings)
        fresh.conversation.turns = session.conversation.turns[:1]
        whole.append(seconds_to_first_token(fresh, QUESTION))
    ratio = statistics.median(a / b for a, b in zip(cached, whole, strict=True))
    print(f"{mx.default_device()}, MLX {mx.__version__}, {arguments.repeats} repeats")
    print(f"history of {history} tokens, then {QUESTION!r}: time to the first token")
    print(f"cached {statistics.median(cached):.3f} s, everything {statistics.median(whole):.3f} s")
    print(f"ratio {ratio:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
