"""Measure what a thinking text does at many places of answers to prompts that calibration held out.

    python benchmarks/thought_effect.py [--rounds 16] [--text TEXT …] [--journal FILE]

`entropix calibrate` measures the text that it chooses at some 70 places, too few for a narrow
interval; here each prompt is answered with many seeds, and each place is tried. Without --text, the
text is that of the profile which suits the model. Every insertion is compared with the same answer
without it (docs/sampler.md): once over the tokens right after it, whatever they are like, and once,
if it is kept only where these gain, over the tokens behind those that decide. Intervals are at
95 %, by bootstrap over places and, wider, over prompts.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from entropix_mlx.lab.ask_model import Asker, Progress
from entropix_mlx.lab.calibration.insertions import Trials, spots
from entropix_mlx.lab.calibration.interventions import OFF, sampler, without
from entropix_mlx.lab.calibration.thinking_text import LEAST_GAIN, Measured

from entropix_mlx import load
from entropix_mlx.lab.calibration.prompt_sets import builtin_prompts
from entropix_mlx.lab.evaluation.statistics import bootstrap_mean
from entropix_mlx.profiles.selection import profile_for

TOKENS = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=16, help="answers to each prompt")
    parser.add_argument("--text", action="append", help="what is inserted, once for each text")
    parser.add_argument("--journal", type=Path, help="go on with the findings in this file")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model)
    bare = without(profile_for(model.config), *OFF)
    progress = Progress(arguments.journal, resume=True)
    progress.begin({"tokens": TOKENS})
    asker = Asker(model, tokenizer, 0, progress)
    prompts = builtin_prompts().held_out * arguments.rounds
    answers = asker.answers("answers", prompts, TOKENS, profile=bare)
    found = tuple(spot for one in answers for spot in spots(tokenizer, one, bare.think))
    print(f"{len(answers)} answers, {len(found)} places", flush=True)
    rules = {"wherever it can stand": -math.inf, "where it gains": LEAST_GAIN}
    for text in arguments.text or [bare.think.text]:
        for name, least in rules.items():
            trials = Trials(asker, sampler(bare.replace({"think": {"least_gain": least}})))
            places = tuple(filter(trials.tells, found))
            effects = trials.effects(f"{text!r} {name}", [(spot, text) for spot in places])
            report(name, Measured(text, places, tuple(effects)))


def report(where: str, measured: Measured) -> None:
    told = measured.to_dict()
    print(f"{measured.text!r} {where}: {told['n']} kept, {told['dropped']} dropped")
    for name in ("total", "logprob", "entropy"):
        by_prompt = defaultdict(list)
        for spot, effect in zip(measured.spots, measured.effects, strict=True):
            if not effect.dropped:
                by_prompt[spot.answer.asked].append(getattr(effect, name))
        means = [fmean(values) for values in by_prompt.values()]
        wide = bootstrap_mean(means)
        mean, low, high = told[name]
        print(
            f"  {name}: {mean:+.3f} ({low:+.3f} to {high:+.3f});"
            f" by prompt {fmean(means):+.3f} ({wide.low:+.3f} to {wide.high:+.3f}), {len(means)}"
        )
    print(f"  by the entropy of the place: {measured.by_entropy()}", flush=True)


if __name__ == "__main__":
    main()
