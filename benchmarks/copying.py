"""Answer prompts that ask for a copy, with guesses from the text and without: how much faster?

    python benchmarks/copying.py [--model M] [--tokens 64] [--each 5] [--free 4]
        [--kind "continue JSON"] [--record FILE]

For each prompt and sampler, one answer without guesses and one with them, in turns in one process.
Counted is the processor time from the first pass behind the prompt to the last token, so that
others who use the machine do not matter much; set OPENBLAS_NUM_THREADS=1, or threads that wait for
one another are counted, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from entropix_mlx.lab.bench.lookups import COPYING, FREE_TEXT

from entropix_mlx import Settings, chat_prompt, load, stream_generate
from entropix_mlx.lab.calibration.calibrate import builtin_prompts
from entropix_mlx.step import Step, first_divergence
from entropix_mlx.summary import Summary

SAMPLERS = ("greedy", "entropix")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--each", type=int, default=5, help="prompts of each kind, the last ones")
    parser.add_argument("--free", type=int, default=4, help="prompts for free text")
    parser.add_argument("--kind", action="append", help="only these kinds")
    parser.add_argument("--record", help="append what was found, a line an answer")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model)
    prompts = {kind: texts[-arguments.each :] for kind, texts in COPYING.items()}
    prompts[FREE_TEXT] = tuple(builtin_prompts().fit[: arguments.free])
    prompts = {kind: prompts[kind] for kind in arguments.kind or prompts}
    ratios: dict[tuple[str, str], list[float]] = {}
    for kind, texts in prompts.items():
        for number, text in enumerate(texts):
            prompt = chat_prompt(tokenizer, text)
            for sampler in SAMPLERS:
                settings = Settings(arguments.tokens, sampler, seed=0)
                ways = ("off", "auto") if number % 2 else ("auto", "off")
                runs = {way: timed(model, tokenizer, prompt, settings, way) for way in ways}
                (without, plain), (steps, guessing) = runs["off"], runs["auto"]
                ratio = plain / guessing
                ratios.setdefault((kind, sampler), []).append(ratio)
                report(kind, sampler, ratio, steps, without)
                if arguments.record:
                    record(arguments.record, kind, sampler, ratio, prompt, without)
    for (kind, sampler), found in ratios.items():
        spread = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        print(f"{kind}, {sampler}: {spread}, {len(found)} prompts")


def timed(
    model: Any, tokenizer: Any, prompt: list[int], settings: Settings, speculation: str
) -> tuple[list[Step], float]:
    """Return an answer, and the processor time that it took behind its prompt."""
    began = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal began
        if done == total:
            began = time.process_time()

    options: dict[str, Any] = {"speculation": speculation, "on_prefill": progress}
    steps = list(stream_generate(model, tokenizer, prompt, settings, **options))
    return steps, time.process_time() - began


def report(
    kind: str, sampler: str, ratio: float, steps: Sequence[Step], without: Sequence[Step]
) -> None:
    total = Summary.of(steps)
    same = "" if first_divergence(steps, without) is None else ", another text"
    kept = f"{total.accepted} of {total.proposed} guesses kept, {total.forks} forks"
    passes = f"{len(steps)} tokens, {total.tokens_per_pass:.2f} a pass"
    print(f"{kind}, {sampler}: {ratio:.2f} times as fast, {passes}, {kept}{same}", flush=True)


def record(
    path: str, kind: str, sampler: str, ratio: float, prompt: list[int], steps: Sequence[Step]
) -> None:
    found = {"kind": kind, "sampler": sampler, "ratio": ratio, "prompt": prompt}
    found["steps"] = [[step.token, step.origin, step.text] for step in steps]
    with open(path, "a") as file:
        file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
