"""Thresholds that mean something for one model, solved from what the model itself measures.

Fixed thresholds do not transfer: what is a high entropy for a large model is an ordinary one for a
small model. Here a model answers prompts, and the thresholds are put where the joint distribution
of entropy, varentropy and margin gives each strategy its share (`targets` in the profile). What is
decided changes the text, and so the distribution; so the thresholds are solved twice, the second
time from text that was sampled with the first ones, and the shares are measured on other prompts.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..chat.session import Session
from ..errors import PromptError
from ..models.llama import Model
from ..policies.draw import uniforms
from ..profiles.choice import fingerprint
from ..profiles.profile import Profile
from ..profiles.sections import Targets
from ..settings import Settings
from ..step import Metrics, Origin, Step, Strategy

Floats = npt.NDArray[np.float64]

FIRST_SAMPLER, FIRST_TEMPERATURE = "min_p", 0.7
"""What the first text is sampled with: sane text on any model."""
THINK_FROM = 0.6
"""The model counts as lost above this quantile of its entropy."""
CHAOS_FROM = 0.85
"""Above this quantile of the entropy a fork becomes chaos: branch below it, resample above."""
WARMEST = {"logits": 0.4, "attention": 0.1}
"""By how much of the base temperature the adaptive strategy warms at the 90 % quantile of
H + V and of the attention's entropy + varentropy. The published slopes are for models whose
measurements are a fifth as large: on a small model they make every token hot."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
HELD_OUT_EVERY = 3
"""Of prompts from a file, each third is held out."""


@dataclass(frozen=True)
class Prompts:
    """What a model is calibrated on, and what the result is measured on."""

    fit: list[str]
    held_out: list[str]


@dataclass(frozen=True)
class Calibration:
    """A solved profile and what is known about it."""

    profile: Profile
    rates: dict[str, float]
    """Share of each strategy on the held-out prompts."""
    auroc: dict[str, float]
    """By measurement: how well it tells the positions at which a draw at temperature 1 differs from
    the most probable token; 0.5 is not at all, 1 perfectly (below 0.5 the other way round)."""


def builtin_prompts() -> Prompts:
    """Return the prompts that come with the package."""
    file = resources.files(__package__) / "calibration_prompts.toml"
    kinds = tomllib.loads(file.read_text(encoding="utf-8"))
    fit, held_out = (
        [prompt for prompts in kinds[part].values() for prompt in prompts]
        for part in ("fit", "held_out")
    )
    return Prompts(fit, held_out)


def read_prompts(path: str | Path) -> Prompts:
    """Return the prompts of a file, one a line; each third is held out.

    Raises:
        PromptError: the file cannot be read, or has less than six different prompts.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"cannot read the prompts in {path}: {error}") from error
    prompts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if len(prompts) < 2 * HELD_OUT_EVERY:
        raise PromptError(
            f"{path} has {len(prompts)} different prompts: give at least {2 * HELD_OUT_EVERY}"
        )
    held_out = prompts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return Prompts([prompt for prompt in prompts if prompt not in held_out], held_out)


def calibrate(
    model: Model,
    tokenizer: TokenizerWrapper,
    name: str,
    *,
    prompts: Prompts | None = None,
    tokens: int = 32,
    seed: int = 0,
    base: Profile | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Solve the thresholds of a profile for a model.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        name: the model's name, for the profile's record.
        prompts: what to answer; None takes the built-in ones.
        tokens: the most tokens an answer.
        seed: the same seed gives the same profile on the same machine.
        base: the profile whose thresholds are replaced, and whose targets hold; None is
            `reference`.
        on_progress: called with the answers so far and their number.

    Raises:
        PromptError: the model has no chat template.
    """
    prompts = prompts or builtin_prompts()
    base = base or Profile.load()
    total = 2 * len(prompts.fit) + len(prompts.held_out)
    done = 0

    def answers(asked: list[str], **settings: Any) -> list[Step]:
        nonlocal done
        session = Session(model, tokenizer, Settings(max_tokens=tokens, top_logprobs=1, **settings))
        steps: list[Step] = []
        for number, prompt in enumerate(asked):
            session.settings = replace(session.settings, seed=seed + number)
            ask = session.edit(0, prompt) if number else session.send(prompt)
            steps += ask
            done += 1
            on_progress(done, total)
        return steps

    on_progress(0, total)
    first = answers(prompts.fit, sampler=FIRST_SAMPLER, temperature=FIRST_TEMPERATURE)
    # Rollouts cost a multiple of what they change in the distribution.
    draft = _solved(base, first)
    steps = answers(prompts.fit, profile=draft.replace({"branch": {"max_branches": 0}}))
    profile = _solved(base, steps)
    measured = answers(prompts.held_out, profile=profile.replace({"branch": {"max_branches": 0}}))
    rates, auroc = strategy_rates(measured), disagreement_auroc([*steps, *measured], seed)
    record = {
        "model": name,
        "fingerprint": fingerprint(model.config),
        "precision": _precision(model),
        "seed": seed,
        "tokens": len(steps),
        "quantiles": {n: _quantiles(steps, n) for n in ("entropy", "varentropy", "margin")},
        "rates": rates,
        "auroc": auroc,
    }
    described = {
        "name": name.lower(),  # as its file is called
        "description": f"Thresholds solved for {name}.",
        "calibration": record,
    }
    return Calibration(profile.replace(described), rates, auroc)


def strategy_rates(steps: Sequence[Step]) -> dict[str, float]:
    """Return which share of steps each strategy has; `think` includes inserted tokens."""
    counts = Counter(step.strategy for step in steps)
    shares = {str(s): counts[s] / max(1, len(steps)) for s in Strategy if s is not Strategy.SAMPLE}
    return {name: round(share, 4) for name, share in shares.items()}


def disagreement_auroc(steps: Sequence[Step], seed: int) -> dict[str, float]:
    """Return the AUROC of each measurement for "a draw at temperature 1 is not the top token".

    The draw is made here, from the probability of the top token, which each step lists first.
    """
    free = [step for step in steps if step.origin is not Origin.INSERTED]
    top = np.array([math.exp(step.top_logprobs[0].logprob) for step in free])
    drawn = np.array([uniforms(seed, number, 1)[0][0] for number in range(len(free))])
    return {
        name: round(_auroc(np.array([step.metrics[name] for step in free]), drawn > top), 3)
        for name in Metrics._fields
    }


def solve(
    entropy: Floats, varentropy: Floats, margin: Floats, targets: Targets
) -> dict[str, float]:
    """Return the thresholds that give each strategy its share of some positions.

    The rows of the decision tree are solved in their order, each on what the ones before it leave.

    Args:
        entropy: `(positions,)`, bits; likewise the others.
        varentropy: bits².
        margin: probability.
        targets: the shares.
    """
    count = len(entropy)
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


def _solved(base: Profile, steps: Sequence[Step]) -> Profile:
    """Return a profile with thresholds, and slopes of the adaptive strategy, for some steps."""
    free = [step.metrics for step in steps if step.origin is not Origin.INSERTED]
    columns = {name: np.array([m[name] for m in free]) for name in Metrics._fields}
    thresholds = solve(columns["entropy"], columns["varentropy"], columns["margin"], base.targets)
    uncertain = float(np.quantile(columns["entropy"] + columns["varentropy"], 0.9))
    scattered = float(
        np.quantile(columns["attention_entropy"] + columns["attention_varentropy"], 0.9)
    )
    slopes = {
        "temperature_logits": WARMEST["logits"] / max(uncertain, 1e-6),
        "temperature_attention": WARMEST["attention"] / max(scattered, 1e-6),
        "min_p_slope": WARMEST["logits"] / max(uncertain, 1e-6),
    }
    return base.replace(
        {
            "thresholds": {name: _short(value) for name, value in thresholds.items()},
            "adaptive": {name: _short(value) for name, value in slopes.items()},
        }
    )


def _low_corner(entropy: Floats, varentropy: Floats, share: float) -> tuple[float, float]:
    """Return two bounds, at one quantile of each, that together hold a share of the positions."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        bounds = np.quantile(entropy, middle), np.quantile(varentropy, middle)
        held = np.mean((entropy < bounds[0]) & (varentropy < bounds[1]))
        low, high = (middle, high) if held < share else (low, middle)
    return float(np.quantile(entropy, high)), float(np.quantile(varentropy, high))


def _cut(values: Floats, count: int) -> float:
    """Return a value below which `count` of the values lie, or all if there are fewer."""
    ordered = np.sort(values)
    if not len(ordered):
        return -math.inf
    if count >= len(ordered):
        return math.inf
    return float(ordered[count] if count == 0 else (ordered[count - 1] + ordered[count]) / 2)


def _auroc(scores: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a positive scores higher than a negative; ties count half."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return 0.5
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    wins = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(wins / positives / negatives)


def _quantiles(steps: Sequence[Step], name: str) -> list[float]:
    values = [step.metrics[name] for step in steps if step.origin is not Origin.INSERTED]
    return [_short(float(value)) for value in np.quantile(values, QUANTILES)]


def _precision(model: Model) -> str:
    for _, layer in model.named_modules():
        if isinstance(layer, nn.QuantizedLinear):
            return f"{layer.bits} bits in groups of {layer.group_size}"
    return str(model.model.norm.weight.dtype).removeprefix("mlx.core.")


def _short(value: float) -> float:
    """Return a number with four digits: what a person reads in a profile."""
    return float(f"{value:.4g}")
