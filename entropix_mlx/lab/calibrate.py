"""Calibration: solve the thresholds of a profile for one model, from the model's own answers.

Thresholds do not transfer from one model to another: an entropy that is high for a large model is
ordinary for a small one. So a profile states `targets`, the share of positions that each strategy
should get, at most, and calibration finds thresholds for them:

1. The model answers prompts with a plain sampler, and every position is measured.
2. `solve` puts the thresholds where the joint distribution of entropy, varentropy and margin gives
   each strategy its share.
3. The strategies change the text, and thereby the distribution. So the model answers the same
   prompts with these thresholds, without interventions, and they are solved again from the new
   measurements.

On prompts that were held out, the shares are then measured. A calibrated profile inserts no
thoughts and follows no forks until one asks for them: no study found that they help.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources

import numpy as np
import numpy.typing as npt
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..api.batch import batch_generate
from ..api.prompts import conversation_prompt
from ..models.base import LanguageModel
from ..models.config import fingerprint
from ..profiles.profile import Profile
from ..profiles.sections import Targets
from ..settings import Settings
from ..step import Metrics, Step, Strategy

Floats = npt.NDArray[np.float64]
FIRST_SAMPLER, FIRST_TEMPERATURE = "min_p", 0.7
"""The first answers are drawn with these: they give readable text with any model."""
WARMEST = {"logits": 0.4, "attention": 0.1}
"""The adaptive strategy raises the temperature by this share of its base where entropy +
varentropy of the logits, and of the attention, are at their 90 % quantile. The published slopes
are for models with measurements a fifth as large; on a small model, they would raise the
temperature of every token."""
WARMEST_AT = 0.9
"""The quantile for `WARMEST`."""
LONGER = 2
"""Answers other than the first may be so many times as long."""
INTERVENTIONS_OFF = {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}
AT_ONCE = 32
"""Answers that run together, where the memory allows so many. A pass reads all weights whatever
its width: on two cores a token of the demo model takes 23 ms of a processor among 8, and 14 ms
among 24."""
THINK_FROM = 0.6
"""`think` applies above this quantile of the entropy only."""
CHAOS_FROM = 0.85
"""This quantile of the entropy separates `branch`, below it, from `resample`, above it."""


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a calibration."""

    fit: list[str]
    """Thresholds are solved from the answers to these."""
    held_out: list[str]
    """The shares of the strategies are measured on these."""


def builtin_prompts() -> PromptSet:
    file = resources.files(__package__) / "calibration_prompts.toml"
    parts = tomllib.loads(file.read_text(encoding="utf-8"))
    fit, held_out = (
        [prompt for prompts in parts[part].values() for prompt in prompts]
        for part in ("fit", "held_out")
    )
    return PromptSet(fit, held_out)


def calibrate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    name: str,
    *,
    prompts: PromptSet | None = None,
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
    solved = _solved(bare, answered(prompts.fit, plain))
    longer = Settings(max_tokens=LONGER * tokens, profile=solved)
    steps = answered(prompts.fit, longer)
    solved = _solved(bare, steps)
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


def solve(
    entropy: Floats, varentropy: Floats, margin: Floats, targets: Targets
) -> dict[str, float]:
    """Return the thresholds that give each strategy its share of some positions.

    The decision tree takes the first of its rows that fits a position. So the rows are solved in
    their order, each on the positions that the rows before it leave.

    Args:
        entropy: `(positions,)`, bits; likewise the others.
        varentropy: bits².
        margin: difference of the two highest probabilities.
        targets: the shares.

    Returns:
        The thresholds, by the names of their fields.
    """
    count = len(entropy)
    # Each row below is a region of the (entropy, varentropy) plane; `left` are the positions that
    # no row has taken so far.
    low_entropy, low_varentropy = _low_corner(entropy, varentropy, targets.argmax)
    left = ~((entropy < low_entropy) & (varentropy < low_varentropy))
    lost_from = float(np.quantile(entropy, THINK_FROM))
    lost = left & (entropy > lost_from)
    lost_below = _cut(varentropy[lost], round(targets.think * count))
    left &= ~(lost & (varentropy < lost_below))
    chaos_from = float(np.quantile(entropy, CHAOS_FROM))
    close = float(np.median(margin[left])) if left.any() else 1.0
    fork = left & (entropy < chaos_from) & (margin < close)
    chaos = left & (entropy > chaos_from)
    return {
        "low_entropy": low_entropy,
        "low_varentropy": low_varentropy,
        "think_min_entropy": lost_from,
        "think_max_varentropy": lost_below,
        "branch_max_entropy": chaos_from,
        "branch_min_varentropy": -_cut(-varentropy[fork], round(targets.branch * count)),
        "branch_max_margin": close,
        "resample_min_entropy": chaos_from,
        "resample_min_varentropy": -_cut(-varentropy[chaos], round(targets.resample * count)),
    }


def _low_corner(entropy: Floats, varentropy: Floats, share: float) -> tuple[float, float]:
    """Return the same quantile of both, such that a share of the positions lies below both."""
    ranks = [
        values.argsort().argsort() / max(1, len(values) - 1) for values in (entropy, varentropy)
    ]
    level = np.quantile(np.maximum(*ranks), share)
    return float(np.quantile(entropy, level)), float(np.quantile(varentropy, level))


def _cut(values: Floats, count: int) -> float:
    """Return a value below which `count` of the values lie, or all if there are fewer."""
    ordered = np.sort(values)
    if not len(ordered):
        return -math.inf
    if count >= len(ordered):
        return math.inf
    return float(ordered[count] if count == 0 else (ordered[count - 1] + ordered[count]) / 2)


def strategy_rates(steps: Sequence[Step]) -> dict[str, float]:
    """Return the share of each strategy; `think` includes inserted tokens."""
    counts = Counter(step.strategy for step in steps)
    shares = {str(s): counts[s] / max(1, len(steps)) for s in Strategy if s is not Strategy.SAMPLE}
    return {name: round(share, 4) for name, share in shares.items()}


def _solved(base: Profile, steps: Sequence[Step]) -> Profile:
    columns = {name: np.array([step.metrics[name] for step in steps]) for name in Metrics._fields}
    thresholds = solve(columns["entropy"], columns["varentropy"], columns["margin"], base.targets)
    uncertain = float(np.quantile(columns["entropy"] + columns["varentropy"], WARMEST_AT))
    attention = columns["attention_entropy"] + columns["attention_varentropy"]
    scattered = float(np.quantile(attention, WARMEST_AT))
    slopes = {
        "temperature_logits": WARMEST["logits"] / max(uncertain, 1e-6),
        "min_p_slope": WARMEST["logits"] / max(uncertain, 1e-6),
    }
    if not math.isnan(scattered):  # attention was measured
        slopes["temperature_attention"] = WARMEST["attention"] / max(scattered, 1e-6)
    return base.replace(
        {
            "thresholds": {name: _short(value) for name, value in thresholds.items()},
            "adaptive": {name: _short(value) for name, value in slopes.items()},
        }
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")
