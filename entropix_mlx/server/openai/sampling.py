"""The fields of a request that say how to generate, as `Settings`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ...errors import ProfileError, SamplerError
from ...profiles.fields import (
    LARGEST_WHOLE,
    Number,
    Rule,
    check_flag,
    check_text,
    one_of,
    overlaid,
    shown,
)
from ...profiles.profile import Profile
from ...profiles.sampler_specs import parameters
from ...profiles.sections import MOST_FORKS
from ...samplers.registry import find_sampler
from ...settings import ANSWERS, LOOPS, NO_LIMIT, Settings
from ..model_info import Limits, ServedModel
from .body import Body, check_object
from .errors import RequestError

FIELDS = (
    *parameters(),
    *("seed", "max_tokens", "max_completion_tokens", "stop", "loops", "thinking_budget"),
    *("sampler", "profile", "set", "think", "branch", "answers"),
)
EXPLAINED = ("sampler", "profile", "set", "think", "branch")
"""The fields that thresholds depend on."""

SEED = Number(-(2**63), 2**63 - 1, whole=True)
PENALTY = Number(-2.0, 2.0)
LARGEST_BIAS = 100.0
TOKENS = Number(0, LARGEST_WHOLE, whole=True)
SMALLEST_TOP_P = 1e-9
"""What a `top_p` of 0 means, which OpenAI takes: the most probable token."""


def read_settings(body: Body, served: ServedModel, most: int, least: int = 1) -> Settings:
    """Return the settings of a request; `most` tokens if it has no limit, and at least `least`."""
    given = _read_parameters(body, served)
    sampler = body.read("sampler", check_text) or served.settings.sampler
    if sampler == "greedy" and given.get("temperature") == 0:
        del given["temperature"]  # which is what it says
    _check_sampler(sampler, given)
    return replace(
        served.settings,
        sampler=sampler,
        profile=_read_profile(body, served),
        changes={},
        max_tokens=_read_max_tokens(body, most, least),
        seed=body.read("seed", SEED, served.settings.seed),
        answers=body.read("answers", ANSWERS, served.settings.answers),
        stop=body.read("stop", _stops(served.limits)) or served.settings.stop,
        thinking_budget=body.read("thinking_budget", TOKENS, served.settings.thinking_budget),
        loops=body.read("loops", one_of(*LOOPS), served.settings.loops),
        **given,
    )


def _read_parameters(body: Body, served: ServedModel) -> dict[str, Any]:
    for name in ("presence_penalty", "frequency_penalty"):
        body.read(name, PENALTY)
    if type(top_p := body.get("top_p")) in (int, float) and not top_p:
        body = Body(body.without(()) | {"top_p": SMALLEST_TOP_P})
    known = parameters().items()
    given = {name: body.read(name, option.rule) for name, option in known if name in body}
    _check_biases(given.get("logit_bias", {}), served)
    return given


def _check_biases(biases: dict[int, float], served: ServedModel) -> None:
    most, size = served.limits.biases, served.config.vocab_size
    wrong = None
    if len(biases) > most:
        wrong = f"may name {most} tokens at most"
    elif any(abs(bias) > LARGEST_BIAS for bias in biases.values()):
        wrong = f"must be between -{LARGEST_BIAS:g} and {LARGEST_BIAS:g}"
    elif beyond := [token for token in biases if token >= size]:
        wrong = f"names token {beyond[0]}, and the model has {size}"
    if wrong is not None:
        raise RequestError(f"logit_bias {wrong}", "logit_bias")


def _check_sampler(name: str, given: dict[str, Any]) -> None:
    try:
        kind = find_sampler(name)
    except SamplerError as error:
        raise RequestError(str(error), "sampler") from None
    for parameter, value in given.items():
        try:
            kind.check({parameter: value})
        except SamplerError as error:
            raise RequestError(str(error), parameter) from None


def _read_max_tokens(body: Body, most: int, least: int) -> int:
    name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    given = body.get(name)
    if given == NO_LIMIT and not isinstance(given, bool):
        return NO_LIMIT
    return int(body.read(name, Number(least, LARGEST_WHOLE, whole=True), most))


def _stops(limits: Limits) -> Rule:
    def check(value: Any) -> tuple[str, ...]:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(t, str) and t for t in listed):
            raise ValueError(
                f"must be a text or a list of texts, none of them empty, not {shown(value)}"
            )
        if len(listed) > limits.stops or any(len(t) > limits.stop_characters for t in listed):
            most = f"{limits.stops} texts of {limits.stop_characters} characters"
            raise ValueError(f"may hold {most} at most")
        return tuple(listed)

    return check


def _read_profile(body: Body, served: ServedModel) -> Profile:
    named, profile = body.get("profile"), served.profile
    if isinstance(named, str):
        profile = served.find_profile(named)
    elif named is not None:
        changes = dict(body.read("profile", check_object))
        extended = changes.pop("extends", None)
        if isinstance(extended, str):
            profile = served.find_profile(extended)
        _check_size(changes, "profile", served.limits)
        profile = _changed(profile, changes, "profile")
    assignments = body.read("set", check_object, {})
    _check_size(assignments, "set", served.limits)
    profile = _changed(profile, _nested(assignments), "set")
    profile = profile.replace(_switches(body))
    _check_branches(profile, served.limits)
    return profile


def _check_size(changes: dict[str, Any], name: str, limits: Limits) -> None:
    """Refuse what is larger than any profile, before anything is done with it."""
    if len(changes) > limits.profile_fields or len(json.dumps(changes)) > limits.profile_bytes:
        most = f"{limits.profile_fields} fields and {limits.profile_bytes:,} bytes"
        raise RequestError(f"{name} may have {most} at most", name)


def _changed(profile: Profile, changes: dict[str, Any], name: str) -> Profile:
    if not changes:
        return profile
    try:
        return profile.replace(changes, name)
    except ProfileError as error:
        raise RequestError(str(error), name) from None


def _nested(assignments: dict[str, Any]) -> dict[str, Any]:
    """Return ``{"thresholds.low_entropy": 0.2}`` as tables within tables."""
    result: dict[str, Any] = {}
    for name, assigned in assignments.items():
        value = assigned
        for part in reversed(name.split(".")[:4]):
            value = {part: value}
        result = overlaid(result, value)
    return result


def _switches(body: Body) -> dict[str, Any]:
    """Return the changes by `think` and `branch`: false leaves the intervention out.

    Forks are also turned on, if the profile has none.
    """
    changes: dict[str, Any] = {}
    if not body.read("think", check_flag, True):
        changes["think"] = {"max_insertions": 0}
    branch = body.get("branch")
    if isinstance(branch, dict):
        sizes, size = Body(branch), Number(1, 64, whole=True)
        sizes.check_names(("width", "depth"))
        own = {name: sizes.read(name, size) for name in ("width", "depth") if name in sizes}
        changes |= {"branch": own | {"max_branches": MOST_FORKS}, "cntp": own}
    elif body.read("branch", check_flag, False):
        changes["branch"] = {"max_branches": MOST_FORKS}
    elif "branch" in body:
        changes |= {"branch": {"max_branches": 0}, "cntp": {"max_branches": 0}}
    return changes


def _check_branches(profile: Profile, limits: Limits) -> None:
    for rule in (profile.branch, profile.cntp):
        for name, most in (("width", limits.branch_width), ("depth", limits.branch_depth)):
            if getattr(rule, name) > most:
                raise RequestError(f"the {name} of forks may be {most} at most here", "branch")
