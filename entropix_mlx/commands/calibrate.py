"""`entropix calibrate`: solve the thresholds for one model, and write them as a profile.

With ``--abstain`` it is the threshold below which an answer is called unsure.
"""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from ..models.config import fingerprint
from ..profiles.profile import Profile, profile_for, read_source, user_folder
from ..profiles.writing import prepare, write_profile
from ..tables import Table
from .shared import loading, output
from .shared.options import Count, File, ModelOptions, Share, command

if TYPE_CHECKING:
    from ..lab.calibrate import PromptSet

PRECISION = re.compile(r"(\.gguf|[-.](q\d\w*|f16|f32|bf16))+$", re.IGNORECASE)
"""The end of a model's name that states its precision, which the profile does not depend on."""
QUICK = 3
"""With ``--quick``, one of so many questions is asked."""
DEMO_SPEED = 3_000
"""Tokens a minute of the demo model on two cores, many answers at once."""
UNSURE = Group("Unsure answers", sort_key=2)


@command()
def calibrate(
    *,
    model: ModelOptions = ModelOptions(),
    max_tokens: Annotated[Count, Parameter(name=["--max-tokens", "-m"])] = 32,
    seed: int = 0,
    place: Annotated[File, Parameter(name=["--output", "-o"])] = None,
    abstain: Annotated[File, Parameter(group=UNSURE)] = None,
    risk: Annotated[Share, Parameter(group=UNSURE)] = 0.2,
    quick: bool = False,
    learned: bool = False,
    show: str | None = None,
) -> int:
    """Solve the thresholds of the strategies for a model, and write them as a profile.

    Args:
        max_tokens: most tokens of an answer
        seed: the same seed gives the same profile
        place: where to write the profile (default: where --profile auto finds it)
        abstain: set instead the score below which an answer is called unsure, from this file of
            answers of entropix eval: on half of its questions, and tested on the other half
        risk: the largest share of wrong answers among the sure ones
        quick: ask a third of the questions, for thresholds that are less exact
        learned: write the thresholds that were learned while the model was used, and calibrate
            nothing
        show: check and print a profile, by its name or its file, and calibrate nothing
    """
    if show is not None:
        Profile.load(show)  # checks it
        output.write(output.shown(read_source(show)[1]))
        return 0
    name = PRECISION.sub("", model.name)
    if learned:
        from ..api.learned import TokenCounts

        loaded, _ = loading.load_model(model)
        output.write(f"{TokenCounts(loaded.config).accept(name)}\n")
        return 0
    path = place or user_folder() / f"{name.lower()}.toml"
    prepare(path)
    if abstain is not None:
        from ..lab.abstention import Abstention, fit_threshold, halves_of
        from ..lab.evaluate import read_records

        fitted, tested = halves_of(read_records(abstain))
        rule = fit_threshold(fitted, risk)
    else:
        prompts = _prompts(max_tokens, quick)
    loaded, tokenizer = loading.load_model(model)
    before = profile_for(loaded.config)  # what is calibrated separately stays
    if abstain is not None:
        output.report(f"an answer is called unsure where {rule.score} < {rule.threshold:.4g}")
        output.report(f"the half it was set on: {Abstention.of(rule, fitted)}")
        output.report(f"the other half: {Abstention.of(rule, tested)}")
        record = {"model": name, "fingerprint": fingerprint(loaded.config)} | before.calibration
        profile = before.replace(
            {"abstain": rule.model_dump(), "name": name.lower(), "calibration": record}
        )
    else:
        from ..lab.calibrate import calibrate

        shown = output.progress("calibrating")
        solved = calibrate(
            loaded, tokenizer, name, prompts, tokens=max_tokens, seed=seed, on_progress=shown
        )
        rates = [(key, f"{share:.1%}") for key, share in solved.calibration["rates"].items()]
        output.report(Table(("strategy", "share"), rates, "Tokens on held-out prompts").to_text())
        profile = solved.replace({"abstain": before.abstain.model_dump()})
    date = profile.calibration.get("date", datetime.date.today().isoformat())
    write_profile(profile, path, str(date))
    output.write(f"{path}\n")
    return 0


def _prompts(tokens: int, quick: bool) -> PromptSet:
    """Return the prompts of a calibration, and say what it will take."""
    from ..lab.calibrate import builtin_prompts

    prompts = builtin_prompts(every=QUICK if quick else 1)
    most = prompts.most_tokens(tokens)
    output.report(
        f"this takes at most {most:,} tokens, with the demo model on two cores some"
        f" {most / DEMO_SPEED:.0f} minutes{'' if quick else ', a third of that with --quick'}"
    )
    return prompts
