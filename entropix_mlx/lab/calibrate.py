"""Calibration: solve the thresholds of a profile for one model, from the model's own answers.

Thresholds do not transfer from one model to another: an entropy that is high for a large model is
ordinary for a small one. So a profile states `targets`, the share of positions that each strategy
should get, and calibration finds the thresholds that give these shares:

1. The model answers prompts with a plain sampler, and every position is measured.
2. `solve` puts the thresholds where the joint distribution of entropy, varentropy and margin gives
   each strategy its share.
3. The strategies change the text, and thereby the distribution. So the model answers the same
   prompts with these thresholds, and they are solved again from the new measurements.
4. Thinking texts are tried where one could stand in answers to the same prompts, and the one whose
   measured effect is best is kept, if it does no harm (`thoughts`).
5. The shares are measured on prompts that were held out so far, and what each intervention gains
   there (`gains`). One that does harm is left out: its share is an upper limit, not an aim.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .. import limits
from ..errors import EntropixError, PromptError, check_type, whole_number
from ..models.base import LanguageModel
from ..models.config import fingerprint
from ..models.layout import precision
from ..policies.draw import uniforms
from ..profiles.profile import Profile
from ..settings import Settings
from ..step import NOT_OF_THE_MODEL, Metrics, Step, Strategy
from .asking import Answered, Asker, Progress
from .gains import OFF, Changes, Gain, gains, without_harm
from .insertions import Trials, spots
from .thoughts import Choice, choose
from .thresholds import Floats, solve

FIRST_SAMPLER, FIRST_TEMPERATURE = "min_p", 0.7
"""The first answers are drawn with these: they give readable text with any model."""
WARMEST = {"logits": 0.4, "attention": 0.1}
"""The adaptive strategy raises the temperature by this share of its base where entropy +
varentropy of the logits, and of the attention, are at their 90 % quantile. The published slopes
are for models with measurements a fifth as large; on a small model, they would raise the
temperature of every token."""
WARMEST_AT = 0.9
"""The quantile for `WARMEST`."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""The quantiles of each measurement that a calibrated profile records, for people to read."""
HELD_OUT_EVERY = 3
"""Every third prompt of a file is held out."""
WITHOUT_ROLLOUTS: Changes = OFF["branch"]
"""Rollouts take several times as long, and hardly change the distribution of the measurements."""
UNINTERRUPTED: Changes = {**OFF["think"], **OFF["branch"]}
LONGER = 2
"""Answers in which thoughts are tried, and interventions compared, may be so many times as long:
thoughts stand after the first sentences."""
SPOT_ROUNDS, GAIN_ROUNDS = 3, 2
"""How often each prompt is asked, with another seed, to find places, and to measure gains."""


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a calibration."""

    fit: list[str]
    """The thresholds are solved from the answers to these."""
    held_out: list[str]
    """The shares are measured on the answers to these."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kinds of texts that held-out prompts ask for: code, maths or prose."""


@dataclass(frozen=True)
class Calibration:
    """A solved profile and what is known about it."""

    profile: Profile
    rates: dict[str, float]
    """Share of each strategy on the held-out prompts."""
    auroc: dict[str, float]
    """By measurement: how well it predicts that a draw at temperature 1 is not the most probable
    token. 0.5 is no better than chance, 1 is perfect, 0 is perfect if its sign is turned round."""
    choice: Choice | None
    """The thinking text, and what others did; None where the answers had no place for one."""
    gains: list[Gain]
    """What each intervention gains on the held-out prompts."""


def builtin_prompts() -> PromptSet:
    """Return the prompts that come with the package."""
    file = resources.files(__package__) / "calibration_prompts.toml"
    kinds = tomllib.loads(file.read_text(encoding="utf-8"))
    fit, held_out = (
        [prompt for prompts in kinds[part].values() for prompt in prompts]
        for part in ("fit", "held_out")
    )
    asks = {"code": "code", "arithmetic": "maths"}
    held = kinds["held_out"].items()
    named = {prompt: asks.get(kind, "prose") for kind, prompts in held for prompt in prompts}
    return PromptSet(fit, held_out, named)


def read_prompts(path: str | Path) -> PromptSet:
    """Return the prompts of a file, one a line; every third one is held out.

    Raises:
        PromptError: the file cannot be read, or has less than six different prompts.
    """
    try:
        lines = limits.read_text(Path(path), limits.PROMPTS_BYTES).splitlines()
    except (OSError, ValueError) as error:  # a ValueError: not UTF-8, or a NUL in the name
        raise PromptError(f"cannot read the prompts in {path}: {error}") from error
    prompts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if len(prompts) < (least := 2 * HELD_OUT_EVERY):
        raise PromptError(f"{path} has {len(prompts)} different prompts: give at least {least}")
    held_out = prompts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return PromptSet([prompt for prompt in prompts if prompt not in held_out], held_out)


def calibrate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    name: str,
    *,
    prompts: PromptSet | None = None,
    tokens: int = 32,
    seed: int = 0,
    base: Profile | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Solve the thresholds of a profile for a model, and choose its thinking text.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        name: the model's name, for the profile's record.
        prompts: what to answer; None takes the built-in ones.
        tokens: the most tokens an answer.
        seed: the same seed gives the same profile on the same machine.
        base: the profile whose thresholds are replaced, and whose targets hold; None is
            `reference`.
        progress: whom to tell, and where to keep what was found, so that a calibration that was
            stopped can go on.

    Raises:
        PromptError: the model has no chat template.
        EntropixError: `tokens` is less than 1.
        OutputError: the file of `progress` cannot be used.
    """
    tokens, seed = whole_number("tokens", tokens), whole_number("seed", seed)
    check_type("name", name, str)
    check_type("prompts", prompts, PromptSet, optional=True)
    check_type("base", base, Profile, optional=True)
    if tokens < 1:
        raise EntropixError(f"tokens must be at least 1, not {tokens}")
    prompts = prompts or builtin_prompts()
    base = base or Profile.load()
    progress = progress or Progress()
    progress.begin(_subject(model, prompts, tokens, seed, base))
    asker = Asker(model, tokenizer, seed, progress)
    profile, steps = _solve(asker, prompts, tokens, base)
    choice = _choose_thought(asker, prompts, tokens, profile)
    if choice is not None:
        profile = profile.replace({"think": choice.changes()})
    bare = profile.replace(WITHOUT_ROLLOUTS)
    measured = _steps(asker.answers("rates", prompts.held_out, tokens, profile=bare))
    found = gains(asker, prompts.held_out * GAIN_ROUNDS, prompts.kinds, profile, LONGER * tokens)
    rates, auroc = strategy_rates(measured), disagreement_auroc([*steps, *measured], seed)
    described = {
        "name": name.lower(),  # `--profile` finds a file by its name in lower case
        "description": f"Thresholds solved for {name}.",
        "calibration": {
            "model": name,
            "fingerprint": fingerprint(model.config),
            "precision": precision(model).in_full(),
            "seed": seed,
            "rates": rates,
            "auroc": auroc,
            **_record(steps, choice, found),
        },
    }
    profile = without_harm(profile, found).replace(described)
    return Calibration(profile, rates, auroc, choice, found)


def _record(steps: Sequence[Step], choice: Choice | None, found: Sequence[Gain]) -> dict[str, Any]:
    """Return what a profile records of the measurements, and of what interventions did."""
    return {
        "tokens": len(steps),
        "quantiles": {n: _quantiles(steps, n) for n in ("entropy", "varentropy", "margin")},
        "thoughts": choice.record() if choice is not None else {},
        "gains": {
            name: [one.to_dict() for one in found if one.intervention == name] for name in OFF
        },
    }


def _subject(
    model: LanguageModel, prompts: PromptSet, tokens: int, seed: int, base: Profile
) -> dict[str, Any]:
    """Return what makes two calibrations the same, as JSON can hold it."""
    asked = json.dumps([prompts.fit, prompts.held_out, asdict(base)], sort_keys=True)
    return {
        "fingerprint": fingerprint(model.config),
        "precision": precision(model).in_full(),
        "tokens": tokens,
        "seed": seed,
        "asked": hashlib.sha256(asked.encode()).hexdigest(),
    }


def _solve(
    asker: Asker, prompts: PromptSet, tokens: int, base: Profile
) -> tuple[Profile, list[Step]]:
    """Return a profile with solved thresholds, and the steps that they were solved from."""
    asker.progress.expect(2 * len(prompts.fit))
    plain = {"sampler": FIRST_SAMPLER, "temperature": FIRST_TEMPERATURE}
    first = _steps(asker.answers("plain", prompts.fit, tokens, **plain))
    draft = _solved(base, first).replace(UNINTERRUPTED)
    steps = _steps(asker.answers("draft", prompts.fit, tokens, profile=draft))
    return _solved(base, steps), steps


def _choose_thought(
    asker: Asker, prompts: PromptSet, tokens: int, profile: Profile
) -> Choice | None:
    """Return the thinking text whose effect is best where the answers of a profile have places."""
    bare = profile.replace(UNINTERRUPTED)
    asked = prompts.fit * SPOT_ROUNDS
    asker.progress.expect(len(asked) + (1 + GAIN_ROUNDS * (1 + len(OFF))) * len(prompts.held_out))
    answers = asker.answers("spots", asked, LONGER * tokens, profile=bare)
    found = [
        spot
        for answer in answers
        for spot in spots(asker.tokenizer, answer.prompt, answer.steps, answer.seed)
    ]
    policy = Settings(profile=bare).policy()
    trials = Trials(asker.model, asker.tokenizer, policy)
    return choose(asker, trials, found)


def _steps(answers: Sequence[Answered]) -> list[Step]:
    return [step for answer in answers for step in answer.steps]


def strategy_rates(steps: Sequence[Step]) -> dict[str, float]:
    """Return which share of steps each strategy has; `think` includes inserted tokens."""
    counts = Counter(step.strategy for step in steps)
    shares = {str(s): counts[s] / max(1, len(steps)) for s in Strategy if s is not Strategy.SAMPLE}
    return {name: round(share, 4) for name, share in shares.items()}


def disagreement_auroc(steps: Sequence[Step], seed: int) -> dict[str, float]:
    """Return the AUROC of each measurement for "a draw at temperature 1 is not the top token".

    The draw is made here, with the probability of the top token, which each step lists first.

    Args:
        steps: with `top_logprobs`; inserted tokens do not count.
        seed: of these draws.
    """
    free = [step for step in steps if step.origin not in NOT_OF_THE_MODEL]
    top = np.array([math.exp(step.top_logprobs[0].logprob) for step in free])
    drawn = np.array([uniforms(seed, number, 1)[0][0] for number in range(len(free))])
    return {
        name: round(_auroc(np.array([step.metrics[name] for step in free]), drawn > top), 3)
        for name in Metrics._fields
        if not any(math.isnan(step.metrics[name]) for step in free)  # not measured
    }


def _solved(base: Profile, steps: Sequence[Step]) -> Profile:
    """Return a profile with thresholds, and slopes of the adaptive strategy, for some steps."""
    free = [step.metrics for step in steps if step.origin not in NOT_OF_THE_MODEL]
    columns = {name: np.array([m[name] for m in free]) for name in Metrics._fields}
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


def _auroc(scores: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """Return the probability that a positive scores higher than a negative; ties count half."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return 0.5
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    # Mann and Whitney's U statistic: ranks among the positives themselves are taken off.
    wins = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(wins / positives / negatives)


def _quantiles(steps: Sequence[Step], name: str) -> list[float]:
    values = [step.metrics[name] for step in steps if step.origin not in NOT_OF_THE_MODEL]
    return [_short(float(value)) for value in np.quantile(values, QUANTILES)]


def _short(value: float) -> float:
    """Return a number rounded to four digits, so that a profile is easy to read."""
    return float(f"{value:.4g}")
