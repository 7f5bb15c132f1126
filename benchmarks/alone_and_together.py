"""Answer 32 prompts in batches of 8, and each of them alone: are the answers equal?

    python benchmarks/alone_and_together.py [--model M] [--tokens 64] [--batch 8] [--seed 1]

The prompts, seeds, samplers and profiles all differ, with thinking texts and forks among them. What
shares a forward pass with an answer changes the last digits of its numbers, so an answer may differ
from the one alone; but only from a position on where the decision margin is at most 1e-4: where so
small a change of logits or scores changes the draw, the strategy or a fork's winner.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import mlx.core as mx

from entropix_mlx import Settings, batch_generate, chat_prompt, load, stream_generate
from entropix_mlx.lab.calibration.prompt_sets import builtin_prompts
from entropix_mlx.models.llama.model import Model
from entropix_mlx.step import Step, first_divergence
from tests.oracle.decision_margin import decision_margin, fork_margin

ROUNDING = 1e-4
"""Nats."""
OFTEN = {
    "think": {"min_gap": 8},
    "branch": {"min_gap": 4},
    "thresholds": {"think_min_entropy": 2.0, "think_max_varentropy": 8.0},
}
"""Changes of a profile that make thoughts and forks frequent."""
KINDS = (
    Settings(),
    Settings(profile="reference"),
    Settings(sampler="greedy"),
    Settings(changes=OFTEN),
    Settings(sampler="min_p", temperature=0.9),
    Settings(profile="reference", temperature=0.5, changes={"branch": {"width": 3}}),
    Settings(sampler="cntp"),
    Settings(changes={"branch": {"width": 3, "depth": 9}}, attention_layers="all"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model)
    questions = builtin_prompts().fit[:32]
    prompts = [chat_prompt(tokenizer, text) for text in questions]
    settings = [
        replace(KINDS[n % len(KINDS)], seed=arguments.seed + n, max_tokens=arguments.tokens)
        for n in range(len(prompts))
    ]
    answers = batch_generate(model, tokenizer, prompts, settings, batch=arguments.batch).finish()
    equal = unexplained = 0
    for answer, prompt, own in zip(answers, prompts, settings, strict=True):
        alone = list(stream_generate(model, tokenizer, prompt, own))
        at = first_divergence(answer.steps, alone)
        found = "equal"
        if at is None:
            equal += 1
        else:
            reach = least_margin(model, prompt, own, (answer.steps, alone), at)
            unexplained += reach > ROUNDING
            found = f"differs from token {at} on, where the margin is {reach:.1e}"
        origins = {name: sum(s.origin == name for s in alone) for name in ("inserted", "branch")}
        print(f"{answer.index:3} {own.sampler:9} {len(alone):3} tokens, {origins}: {found}")
    print(f"{equal} of {len(answers)} are equal; {unexplained} differ without a reason")
    return int(unexplained > 0)


def least_margin(
    model: Model, prompt: list[int], settings: Settings, runs: tuple[list[Step], ...], at: int
) -> float:
    """Return the least decision margin of a position: of its token, and of its forks."""
    resolved = settings.resolved(model.config)
    sampler = resolved.build_sampler()
    text = prompt + [step.token for step in runs[0][:at]]

    def of(tokens: list[int]) -> float:
        forward = model(mx.array([tokens]), None, resolved.attention_layers)
        scores = [layer[0] for layer in forward.scores]
        return decision_margin(sampler, forward.logits[0, -1], scores, settings.seed, len(tokens))

    least = of(text)
    for fork in (run[at].fork for run in runs if at < len(run)):
        if fork is not None:
            least = min(least, fork_margin(fork, sampler.fork_rule))
            for branch in fork.branches:
                grown = [text + list(branch.tokens[:n]) for n in range(1, len(branch.tokens))]
                least = min([least, *map(of, grown)])
    return least


if __name__ == "__main__":
    sys.exit(main())
