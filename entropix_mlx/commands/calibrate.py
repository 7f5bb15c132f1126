"""`entropix calibrate`: solve the thresholds for one model, and write them as a profile.

With ``--abstain`` it is the threshold below which an answer is called unsure.
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated

from cyclopts import Group, Parameter

from ..models.config import fingerprint
from ..profiles.profile import Profile, profile_for, read_source, user_folder
from ..profiles.writing import prepare, write_profile
from ..tables import Table
from .shared import loading, output
from .shared.options import Count, File, ModelOptions, Share, command

PRECISION = re.compile(r"(\.gguf|[-.](q\d\w*|f16|f32|bf16))+$", re.IGNORECASE)
"""The end of a model's name that states its precision, which the profile does not depend on."""
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
        show: check and print a profile, by its name or its file, and calibrate nothing
    """
    if show is not None:
        Profile.load(show)  # checks it
        output.write(output.shown(read_source(show)[1]))
        return 0
    name = PRECISION.sub("", model.name)
    path = place or user_folder() / f"{name.lower()}.toml"
    prepare(path)
    if abstain is not None:
        from ..lab.abstention import Abstention, fit_threshold, halves_of
        from ..lab.evaluate import read_records

        fitted, tested = halves_of(read_records(abstain))
        rule = fit_threshold(fitted, risk)
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
        solved = calibrate(loaded, tokenizer, name, tokens=max_tokens, seed=seed, on_progress=shown)
        rates = [(key, f"{share:.1%}") for key, share in solved.calibration["rates"].items()]
        output.report(Table(("strategy", "share"), rates, "Tokens on held-out prompts").to_text())
        profile = solved.replace({"abstain": before.abstain.model_dump()})
    date = profile.calibration.get("date", datetime.date.today().isoformat())
    write_profile(profile, path, str(date))
    output.write(f"{path}\n")
    return 0
