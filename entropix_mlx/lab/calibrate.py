"""Calibration: solve the thresholds of a profile for one model, from the model's own answers.

Thresholds do not transfer from one model to another: an entropy that is high for a large model is
ordinary for a small one. So a profile states `targets`, the share of positions that each strategy
should get, at most, and calibration finds thresholds for them:

1. The model answers prompts with a plain sampler, and every position is measured.
2. `thresholds.solve` puts the thresholds where the joint distribution of entropy, varentropy and
   margin gives each strategy its share.
3. The strategies change the text, and thereby the distribution. So the model answers the same
   prompts with these thresholds, without interventions, and they are solved again from the new
   measurements.

On prompts that were held out, the shares are then measured. A calibrated profile inserts no
thoughts and follows no forks until one asks for them: no study found that they help.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..api.batch import batch_generate
from ..api.prompts import conversation_prompt
from ..models.base import LanguageModel
from ..models.config import fingerprint
from ..profiles.profile import Profile
from ..profiles.thresholds import INTERVENTIONS_OFF, Floats, fitted
from ..settings import Settings
from ..step import Step, Strategy

FIRST_SAMPLER, FIRST_TEMPERATURE = "min_p", 0.7
"""The first answers are drawn with these: they give readable text with any model."""
LONGER = 2
"""Answers other than the first may be so many times as long."""
AT_ONCE = 32
"""Answers that run together, where the memory allows so many. A pass reads all weights whatever
its width: on two cores a token of the demo model takes 23 ms of a processor among 8, and 14 ms
among 24."""


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a calibration."""

    fit: list[str]
    """Thresholds are solved from the answers to these."""
    held_out: list[str]
    """The shares of the strategies are measured on these."""

    def most_tokens(self, tokens: int) -> int:
        """Return how many tokens a calibration takes at most, given those of a first answer."""
        return tokens * ((1 + LONGER) * len(self.fit) + LONGER * len(self.held_out))


def builtin_prompts(every: int = 1) -> PromptSet:
    """Return the prompts of the package, or one of so many of them."""
    file = resources.files(__package__) / "calibration_prompts.toml"
    parts = tomllib.loads(file.read_text(encoding="utf-8"))
    fit, held_out = (
        [prompt for prompts in parts[part].values() for prompt in prompts]
        for part in ("fit", "held_out")
    )
    return PromptSet(fit[::every], held_out[::every])


def calibrate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    name: str,
    prompts: PromptSet | None = None,
    *,
    tokens: int = 32,
    seed: int = 0,
    base: Profile | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Profile:
    """Return a profile whose thresholds are solved for a model, with a record of what from.

    Args:
        model: from `load`; likewise the tokenizer.
        name: the model's name, for the profile's record.
        prompts: None for the built-in ones.
        tokens: of a first answer, at most.
        seed: the same seed gives the same profile on the same machine.
        base: the profile whose thresholds are replaced, and whose targets hold; None is
            `reference`.
        on_progress: called with the number of answers so far, and of all.

    Raises:
        PromptError: the model has no chat template.
    """
    prompts = prompts or builtin_prompts()
    total = 2 * len(prompts.fit) + len(prompts.held_out)
    done = 0

    def answered(asked: Sequence[str], settings: Settings) -> list[Step]:
        """Return the steps of the answers to some prompts; each has the seed after the last."""
        nonlocal done
        texts = [
            conversation_prompt(tokenizer, [{"role": "user", "content": text}]) for text in asked
        ]
        seeded = [replace(settings, seed=seed + number) for number in range(len(texts))]
        batch = batch_generate(model, tokenizer, texts, seeded, batch=AT_ONCE)
        for _, step in batch:
            if step.finish_reason:
                done += 1
                on_progress(done, total)
        for answer in batch.answers:
            if answer.error is not None:
                raise answer.error
        return [step for answer in batch.answers for step in answer.steps]

    plain = Settings(max_tokens=tokens, sampler=FIRST_SAMPLER, temperature=FIRST_TEMPERATURE)
    bare = (base or Profile.load()).replace(INTERVENTIONS_OFF)
    solved = fitted(bare, _measured(answered(prompts.fit, plain)))
    longer = Settings(max_tokens=LONGER * tokens, profile=solved)
    steps = answered(prompts.fit, longer)
    solved = fitted(bare, _measured(steps))
    held_out = answered(prompts.held_out, replace(longer, profile=solved))
    record = {
        "model": name,
        "fingerprint": fingerprint(model.config),
        "precision": model.precision,
        "seed": seed,
        "rates": strategy_rates(held_out),
        "tokens": len(steps),
    }
    described = {
        "name": name.lower(),  # `--profile` finds a file by its name in lower case
        "description": f"Thresholds solved for {name}.",
        "calibration": record,
    }
    return solved.replace(described)


def _measured(steps: Sequence[Step]) -> dict[str, Floats]:
    names = ("entropy", "varentropy", "margin")
    tokens = {name: np.array([step.metrics[name] for step in steps]) for name in names}
    spread = [step.attention_entropy + step.attention_varentropy for step in steps]
    return tokens | {"attention": np.array(spread)}


def strategy_rates(steps: Sequence[Step]) -> dict[str, float]:
    """Return the share of each strategy; `think` includes inserted tokens."""
    counts = Counter(step.strategy for step in steps)
    shares = {str(s): counts[s] / max(1, len(steps)) for s in Strategy if s is not Strategy.SAMPLE}
    return {name: round(share, 4) for name, share in shares.items()}
