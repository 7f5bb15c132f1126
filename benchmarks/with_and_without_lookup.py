"""Answer 40 prompts with guesses from the text, and without: are the answers equal?

    python benchmarks/with_and_without_lookup.py [--model M] [--tokens 48] [--seed 1]
        [--speculation auto]

Half of the prompts ask for a copy, so that many guesses hold. Five samplers take turns, with
thinking texts and forks among them. A pass of several tokens changes the last digits of their
numbers, so an answer may differ from the one without; but only from a position on where the
decision margin is at most 1e-4: where so small a change of logits or scores changes the draw, the
strategy or a fork's winner.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from alone_and_together import OFTEN, ROUNDING, least_margin
from entropix_mlx.lab.bench.lookups import COPYING

from entropix_mlx import Settings, chat_prompt, load, stream_generate
from entropix_mlx.commands.shared import options
from entropix_mlx.lab.calibration.prompt_sets import builtin_prompts
from entropix_mlx.step import first_divergence
from entropix_mlx.summary import Summary

ANSWERS = 40
KINDS = (
    Settings(),
    Settings(sampler="greedy"),
    Settings(changes=OFTEN),
    Settings(sampler="min_p", temperature=0.7),
    Settings(changes={"branch": {"width": 3, "depth": 6}}, attention_layers="all"),
    Settings(sampler="cntp"),
    Settings(profile="reference", changes={"branch": {"depth": 8}}),
    Settings(sampler="top_p", temperature=0.5),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speculation", type=options.speculation, default="auto")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model)
    copying = [text for texts in COPYING.values() for text in texts]
    questions = builtin_prompts().fit
    equal = unexplained = 0
    total = Summary()
    for number in range(ANSWERS):
        asked = copying[number // 2 % len(copying)] if number % 2 else questions[number // 2]
        prompt = chat_prompt(tokenizer, asked)
        kind = KINDS[(number + number // len(KINDS)) % len(KINDS)]
        own = replace(kind, seed=arguments.seed + number, max_tokens=arguments.tokens)
        guessed, without = (
            list(stream_generate(model, tokenizer, prompt, own, speculation=mode))
            for mode in (arguments.speculation, "off")
        )
        for step in guessed:
            total.add(step)
        at = first_divergence(guessed, without)
        found = "equal"
        if at is None:
            equal += 1
        else:
            reach = least_margin(model, prompt, own, (guessed, without), at)
            unexplained += reach > ROUNDING
            found = f"differs from token {at} on, where the margin is {reach:.1e}"
        origins = {name: sum(s.origin == name for s in without) for name in ("inserted", "branch")}
        kept = Summary.of(guessed).accepted
        counts = f"{len(without):3} tokens, {kept:3} guessed right, {origins}"
        print(f"{number:3} {own.sampler:9} {counts}: {found}", flush=True)
    print(f"{equal} of {ANSWERS} are equal; {unexplained} differ without a reason")
    guesses = f"{total.accepted} of {total.proposed} guesses kept"
    print(f"{guesses}, {total.tokens_per_pass:.2f} tokens a pass")
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
