"""`entropix calibrate`: solve the thresholds for one model, and write them as a profile.

With ``--abstain`` it is the threshold below which an answer is called unsure.
"""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from ..errors import PromptError
from ..models.config import fingerprint
from ..profiles.profile import Profile, profile_for, read_source, user_folder
from ..profiles.writing import prepare, write_profile
from ..settings import BATCH, Settings
from ..tables import Table
from .shared import loading, output
from .shared.answers import answer_missing
from .shared.options import Count, File, ModelOptions, Share, command

if TYPE_CHECKING:
    from ..lab.abstention import Abstention
    from ..models.base import LanguageModel

PRECISION = re.compile(r"(\.gguf|[-.](q\d\w*|f16|f32|bf16))+$", re.IGNORECASE)
"""The end of a model's name that states its precision, which the profile does not depend on."""
LIMIT = 1000
"""Questions of each half for ``--abstain``, unless the caller says otherwise."""
MAX_TOKENS = 32
UNSURE = Group("Unsure answers", sort_key=2)


@command()
def calibrate(
    *,
    model: ModelOptions = ModelOptions(),
    max_tokens: Annotated[Count, Parameter(name=["--max-tokens", "-m"])] = MAX_TOKENS,
    seed: int = 0,
    place: Annotated[File, Parameter(name=["--output", "-o"])] = None,
    abstain: Annotated[str | None, Parameter(group=UNSURE)] = None,
    risk: Annotated[Share | None, Parameter(group=UNSURE)] = None,
    limit: Annotated[Count | None, Parameter(group=UNSURE)] = None,
    sampler: Annotated[str, Parameter(group=UNSURE)] = "greedy",
    form: Annotated[Literal["chat", "plain"], Parameter(group=UNSURE)] = "plain",
    show: str | None = None,
) -> int:
    """Solve the thresholds of the strategies for a model, and write them as a profile.

    Args:
        max_tokens: most tokens of an answer
        seed: the same seed gives the same profile
        place: where to write the profile (default: where --profile auto finds it)
        abstain: set instead the score below which an answer is called unsure, on one half of this
            task of entropix eval
        risk: the largest share of wrong answers among the sure ones (default: 0.2)
        limit: questions of each half (default: 1000, or as many as there are)
        sampler: sampler of the answers
        form: as for entropix eval
        show: check and print a profile, by its name or its file, and calibrate nothing
    """
    if show is not None:
        Profile.load(show)  # checks it
        output.write(output.shown(read_source(show)[1]))
        return 0
    for option, value in {"risk": risk, "limit": limit}.items():
        if value is not None and abstain is None:
            raise PromptError(f"--{option} is for --abstain: name a task with it")
    name = PRECISION.sub("", model.name)
    path = place or user_folder() / f"{name.lower()}.toml"
    prepare(path)
    if abstain is None:
        profile = _solve_thresholds(model, name, max_tokens, seed)
    else:
        settings = Settings(sampler=sampler, max_tokens=MAX_TOKENS)
        profile = _solve_abstention(
            model, name, abstain, settings, risk, limit or LIMIT, form, seed
        )
    date = profile.calibration.get("date", datetime.date.today().isoformat())
    write_profile(profile, path, str(date))
    output.write(f"{path}\n")
    return 0


def _solve_thresholds(model: ModelOptions, name: str, tokens: int, seed: int) -> Profile:
    loaded, tokenizer = loading.load_model(model)
    from ..lab.calibrate import calibrate

    show = output.progress("calibrating")
    profile = calibrate(loaded, tokenizer, name, tokens=tokens, seed=seed, on_progress=show)
    rates = [(key, f"{share:.1%}") for key, share in profile.calibration["rates"].items()]
    table = Table(("strategy", "share"), rates, "Tokens on held-out prompts")
    output.report(table.to_text())
    # What is calibrated separately stays.
    return profile.replace({"abstain": profile_for(loaded.config).abstain.model_dump()})


def _solve_abstention(
    model: ModelOptions,
    name: str,
    task: str,
    settings: Settings,
    risk: float | None,
    limit: int,
    form: str,
    seed: int,
) -> Profile:
    """Set the threshold on one half of a task, and report what it does on both."""
    from ..lab.abstention import RISK, Abstention, fit_threshold
    from ..lab.evaluate import AnswerRecord, Arm, PlannedAnswer, answers, parse_record, plan
    from ..lab.questions import FIT, REPORT, Selection, problems_of

    arm = Arm(settings.sampler, settings)
    planned = [
        one
        for half in (FIT, REPORT)
        for one in plan(problems_of(task, Selection(limit, half, seed)), [arm], name, form, seed)
    ]
    records: dict[str, list[AnswerRecord]] = {FIT: [], REPORT: []}

    def keep(one: PlannedAnswer, line: dict[str, Any]) -> None:
        if "error" not in line:
            records[one.question.split].append(parse_record(line))

    loaded: list[LanguageModel] = []

    def answer(one: LanguageModel, *others: Any, **more: Any) -> Any:
        loaded.append(one)
        return answers(one, *others, batch=BATCH, **more)

    answer_missing(model, planned, answer, None, keep)
    abstain = fit_threshold(records[FIT], risk or RISK)
    output.report(
        f"an answer is called unsure where {abstain.score} is below {abstain.threshold:.4g}"
    )
    for half in (FIT, REPORT):
        if records[half]:
            effect = Abstention.of(abstain, records[half])
            output.report(f"{task}, {half} half: {_line(effect)}")
    config = loaded[0].config
    profile = profile_for(config)
    record = {"model": name, "fingerprint": fingerprint(config)} | profile.calibration
    return profile.replace(
        {"abstain": abstain.model_dump(), "name": name.lower(), "calibration": record}
    )


def _line(found: Abstention) -> str:
    from ..lab.report import interval
    from ..lab.statistics import wilson

    n, given, wrong = found
    if not given:
        return f"none of {n} answers is sure: coverage 0"
    return (
        f"{given} of {n} answers given, coverage {given / n:.1%}; of these {wrong} wrong, risk"
        f" {wrong / given:.1%} ({interval(wilson(wrong, given))})"
    )
