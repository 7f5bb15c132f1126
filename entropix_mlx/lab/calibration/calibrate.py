"""Calibration: solve the thresholds of a profile for one model, from the model's own answers.

Thresholds do not transfer from one model to another: an entropy that is high for a large model is
ordinary for a small one. So a profile states `targets`, the share of positions that each strategy
should get, at most, and calibration finds thresholds for them:

1. The model answers prompts with a plain sampler, and every position is measured.
2. `solve` puts the thresholds where the joint distribution of entropy, varentropy and margin gives
   each strategy its share.
3. The strategies change the text, and thereby the distribution. So the model answers the same
   prompts with these thresholds, and they are solved again from the new measurements. These
   answers are the *control*: they have no interventions.
4. Thinking texts are tried where one could stand in the control, and the one whose measured effect
   is best is chosen, if it does no harm (`thoughts`).
5. Forks are followed, and tokens resampled, where the thresholds allow it. The effects there move
   the thresholds on, to where they are most worth their price (`worth`).
6. On prompts that were held out so far, each intervention alone is compared with none, and those
   that do harm, or forks that gain nothing, are left out. Then all that are left are compared with
   none, together (`ablation`).
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ... import limits
from ...errors import EntropixError, PromptError, check_type, whole_number
from ...models.base import LanguageModel
from ...models.config import fingerprint
from ...models.llama.weight_layout import precision
from ...profiles.profile import Profile
from ...profiles.sections import MOST_FORKS, UNFORKED_DRAW
from ...step import Metrics, Step
from ..answering import Answered, Answerer, Journal
from .ablation import (
    BRANCH,
    OFF,
    RESAMPLE,
    TOGETHER,
    Ablation,
    AblationEffect,
    only,
    without,
    without_rejected,
)
from .measurements import disagreement_auroc, own_steps, quantiles, short, solve, strategy_rates
from .thoughts import LEAST_GAIN, InsertionExperiment, InsertionSite, ThoughtChoice, choose, sites
from .worth import Worth, forks, resamples, worth

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
"""Answers other than the first may be so many times as long: thoughts stand after sentences."""
SITE_ROUNDS = 3
"""Rounds, each with other seeds, of the prompts in whose answers a thought can stand."""
ALONE_ROUNDS, TOGETHER_ROUNDS = 3, 6
"""Rounds of the held-out prompts to measure interventions, alone and together."""
TRIED = {"max_branches": MOST_FORKS, "unforked": UNFORKED_DRAW}
"""Of `branch`: forks and hot draws are tried, whatever the base profile does."""

HELD_OUT_EVERY = 3
"""Every third prompt of a file is held out."""
OTHER_KINDS = {"code": "code", "arithmetic": "maths"}
"""Kinds of these prompts of the package; all others are for prose."""


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a calibration."""

    fit: list[str]
    """Decisions follow from the answers to these, and effects are measured on those held out."""
    held_out: list[str]
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kinds of texts, by prompt: code, maths or prose."""


def builtin_prompts() -> PromptSet:
    file = resources.files(__package__) / "calibration_prompts.toml"
    parts = tomllib.loads(file.read_text(encoding="utf-8"))
    fit, held_out = (
        [prompt for prompts in parts[part].values() for prompt in prompts]
        for part in ("fit", "held_out")
    )
    kinds = {
        prompt: OTHER_KINDS.get(kind, "prose")
        for part in parts.values()
        for kind, prompts in part.items()
        for prompt in prompts
    }
    return PromptSet(fit, held_out, kinds)


def read_prompts(path: str | Path) -> PromptSet:
    """Return the prompts of a file, one a line; every third one is held out.

    Raises:
        PromptError: the file cannot be read, or has less than six different prompts.
    """
    lines = limits.read_named(path, limits.PROMPTS_BYTES, PromptError).splitlines()
    prompts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if len(prompts) < (least := 2 * HELD_OUT_EVERY):
        raise PromptError(f"{path} has {len(prompts)} different prompts: give at least {least}")
    held_out = prompts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return PromptSet([prompt for prompt in prompts if prompt not in held_out], held_out)


@dataclass(frozen=True)
class Calibration:
    """A solved profile and the figures behind it."""

    profile: Profile
    rates: dict[str, float]
    auroc: dict[str, float]
    """By measurement: how well it predicts that a draw at temperature 1 is not the most probable
    token. 0.5 is no better than chance, 1 is perfect, 0 is perfect if its sign is turned round."""
    choice: ThoughtChoice | None
    """The thinking text, and what others did; None where the answers had no place for one."""
    worths: dict[str, Worth]
    effects: list[AblationEffect]


def calibrate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    name: str,
    *,
    prompts: PromptSet | None = None,
    tokens: int = 32,
    seed: int = 0,
    base: Profile | None = None,
    journal: Journal | None = None,
) -> Calibration:
    """Solve the thresholds of a profile for a model, and choose its thinking text.

    Args:
        model: from `load`; likewise the tokenizer.
        name: the model's name, for the profile's record.
        prompts: None for the built-in ones.
        tokens: of an answer, at most.
        seed: the same seed gives the same profile on the same machine.
        base: the profile whose thresholds are replaced, and whose targets hold; None is
            `reference`.
        journal: by which a calibration that was stopped resumes.

    Raises:
        PromptError: the model has no chat template.
        EntropixError: `tokens` is less than 1.
        OutputError: the file of the journal cannot be used.
    """
    tokens, seed = whole_number("tokens", tokens), whole_number("seed", seed)
    check_type("name", name, str)
    check_type("prompts", prompts, PromptSet, optional=True)
    check_type("base", base, Profile, optional=True)
    if tokens < 1:
        raise EntropixError(f"tokens must be at least 1, not {tokens}")
    prompts = prompts or builtin_prompts()
    base = base or Profile.load()
    journal = journal or Journal()
    journal.open(_subject(model, prompts, tokens, seed, base))
    answerer = Answerer(model, tokenizer, seed, journal)
    journal.expect(2 * len(prompts.fit) + TOGETHER_ROUNDS * len(prompts.held_out))
    control, bare = _control(answerer, prompts, tokens, base)
    steps = _steps(control)
    answers, choice = _choose_thought(answerer, prompts, control, bare)
    ablation = Ablation(answerer, answers, prompts.kinds, LONGER * tokens)
    solved = _solved(base.replace({"branch": TRIED}), steps)
    profile, worths = _by_worth(ablation, bare, solved)
    if choice is not None:
        profile = profile.replace({"think": choice.changes()})
    profile, effects, measured, treated = _held_out(answerer, prompts, LONGER * tokens, profile)
    rates = strategy_rates(treated)
    auroc = disagreement_auroc([*steps, *measured], seed)
    record = {
        "model": name,
        **_of_model(model),
        "seed": seed,
        "rates": rates,
        "auroc": auroc,
        "tokens": len(steps),
        "quantiles": {n: quantiles(steps, n) for n in ("entropy", "varentropy", "margin")},
        "thoughts": choice.record() if choice is not None else {},
        "worth": {name: one.record() for name, one in worths.items()},
        "effects": {
            arm: [one.to_dict() for one in effects if one.intervention == arm]
            for arm in (*OFF, TOGETHER)
        },
    }
    described = {
        "name": name.lower(),  # `--profile` finds a file by its name in lower case
        "description": f"Thresholds solved for {name}.",
        "calibration": record,
    }
    return Calibration(profile.replace(described), rates, auroc, choice, worths, effects)


def _of_model(model: LanguageModel) -> dict[str, str]:
    return {"fingerprint": fingerprint(model.config), "precision": precision(model).in_full()}


def _subject(
    model: LanguageModel, prompts: PromptSet, tokens: int, seed: int, base: Profile
) -> dict[str, Any]:
    prompted = json.dumps([prompts.fit, prompts.held_out, asdict(base)], sort_keys=True)
    return {
        **_of_model(model),
        "tokens": tokens,
        "seed": seed,
        "asked": hashlib.sha256(prompted.encode()).hexdigest(),
    }


def _control(
    answerer: Answerer, prompts: PromptSet, tokens: int, base: Profile
) -> tuple[list[Answered], Profile]:
    plain: dict[str, Any] = {"sampler": FIRST_SAMPLER, "temperature": FIRST_TEMPERATURE}
    first = _steps(answerer.answers("plain", prompts.fit, tokens, **plain))
    bare = without(_solved(base, first), *OFF)
    return answerer.answers("control", prompts.fit, LONGER * tokens, profile=bare), bare


def _choose_thought(
    answerer: Answerer, prompts: PromptSet, control: list[Answered], bare: Profile
) -> tuple[list[Answered], ThoughtChoice | None]:
    """Return the control with more answers that have places, and the best text for these places."""

    def places(answers: Sequence[Answered]) -> list[InsertionSite]:
        return [site for one in answers for site in sites(answerer.tokenizer, one, bare.think)]

    found = places(control)
    having = [answer.question for answer in control if any(s.answer is answer for s in found)]
    again = having * (SITE_ROUNDS - 1)
    answerer.journal.expect(len(again))
    longest = max(len(answer.steps) for answer in control)
    more = answerer.answers("more places", again, longest, first=len(prompts.fit), profile=bare)
    anywhere, improving = (
        InsertionExperiment(answerer, bare.replace({"think": {"least_gain": least}}))
        for least in (-math.inf, LEAST_GAIN)
    )
    return control + more, choose(answerer, anywhere, improving, found + places(more))


def _by_worth(
    ablation: Ablation, bare: Profile, solved: Profile
) -> tuple[Profile, dict[str, Worth]]:
    """Return a profile with the thresholds at which forks and resampling are worth most, and why.

    The thresholds of `solved` give each strategy its share, which is now an upper limit.
    """
    kinds, limits = ablation.kinds, solved.thresholds
    tried = bare.replace({"branch": asdict(solved.branch), "thresholds": asdict(limits)})
    treated = ablation.answers("forks", only(tried, BRANCH))
    forked = [
        replace(answer, steps=steps)
        for answer, steps in zip(ablation.control, treated, strict=True)
    ]
    drawn = resamples(ablation.answerer, ablation.control, tried, bare, kinds)
    price = solved.targets.price
    worths = {
        BRANCH: worth(forks(forked, kinds), price, limits.branch_min_varentropy),
        RESAMPLE: worth(drawn, price, limits.resample_min_varentropy),
    }
    for name, found in worths.items():
        if math.isinf(found.threshold):
            solved = without(solved, name)
        else:
            at = {f"{name}_min_varentropy": short(found.threshold)}
            solved = solved.replace({"thresholds": at})
    return solved, worths


def _held_out(
    answerer: Answerer, prompts: PromptSet, tokens: int, profile: Profile
) -> tuple[Profile, list[AblationEffect], list[Step], list[Step]]:
    """Return a profile without interventions that do harm on held-out prompts, the effects of all,
    and the steps of the answers without and with them.
    """
    bare, held = without(profile, *OFF), prompts.held_out
    control = answerer.answers("held out", held * TOGETHER_ROUNDS, tokens, profile=bare)
    few = Ablation(answerer, control[: ALONE_ROUNDS * len(held)], prompts.kinds, tokens)
    alone = few.separate_effects(profile)
    profile = without_rejected(profile, alone)
    every = Ablation(answerer, control, prompts.kinds, tokens)
    treated = every.answers(TOGETHER, profile)
    effects = [*alone, *every.effects(TOGETHER, treated)]
    return profile, effects, _steps(control), [step for steps in treated for step in steps]


def _steps(answers: Sequence[Answered]) -> list[Step]:
    return [step for answer in answers for step in answer.steps]


def _solved(base: Profile, steps: Sequence[Step]) -> Profile:
    measured = [step.metrics for step in own_steps(steps)]
    columns = {name: np.array([m[name] for m in measured]) for name in Metrics._fields}
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
            "thresholds": {name: short(value) for name, value in thresholds.items()},
            "adaptive": {name: short(value) for name, value in slopes.items()},
        }
    )
