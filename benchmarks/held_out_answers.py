"""Compare whole answers with a profile's interventions, each alone and all together, with none.

    python benchmarks/held_out_answers.py [--rounds 16] [--alone 6] [--journal FILE]

The prompts are those that calibration held out, each answered with so many seeds; the profile is
that which suits the model. It is the last stage of `entropix calibrate` (docs/sampler.md), with
more answers, for intervals that are narrow enough. Prints a JSON object a line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from entropix_mlx.lab.ask_model import Asker, Progress
from entropix_mlx.lab.calibration.interventions import OFF, without

from entropix_mlx import load
from entropix_mlx.lab.calibration.ablation import TOGETHER, Compared, separate_gains
from entropix_mlx.lab.calibration.measurements import strategy_rates
from entropix_mlx.lab.calibration.prompt_sets import builtin_prompts
from entropix_mlx.profiles.selection import profile_for

TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=16, help="answers to a prompt, together")
    parser.add_argument("--alone", type=int, default=6, help="answers to a prompt, each alone")
    parser.add_argument("--journal", type=Path, help="go on with the findings in this file")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model)
    profile = profile_for(model.config)
    progress = Progress(arguments.journal, resume=True)
    progress.begin({"tokens": TOKENS})
    asker = Asker(model, tokenizer, 0, progress)
    prompts = builtin_prompts()
    held = prompts.held_out
    bare = without(profile, *OFF)
    control = asker.answers("held out", held * arguments.rounds, TOKENS, profile=bare)
    few = Compared(asker, control[: arguments.alone * len(held)], prompts.kinds, TOKENS)
    every = Compared(asker, control, prompts.kinds, TOKENS)
    treated = every.answers(TOGETHER, profile)
    for gain in [*separate_gains(few, profile), *every.gains(TOGETHER, treated)]:
        print(json.dumps({"intervention": gain.intervention} | gain.to_dict()))
    print(json.dumps({"shares": strategy_rates([step for steps in treated for step in steps])}))


if __name__ == "__main__":
    main()
