"""The fields of a request that say how to generate, as `Settings`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ...errors import ProfileError, SamplerError
from ...profiles.fields import LARGEST_WHOLE, overlaid
from ...profiles.profile import Profile
from ...profiles.sampler_specs import parameters
from ...samplers.registry import find_sampler
from ...settings import NO_LIMIT, Settings
from ..model_info import Limits, ServedModel
from .body import Body
from .errors import RequestError

FIELDS = (
    *parameters(),
    *("seed", "max_tokens", "max_completion_tokens", "stop"),
    *("sampler", "profile", "set", "think", "branch"),
)
"""The fields that are read here."""

LARGEST_SEED = 2**63 - 1
LARGEST_BIAS = 100.0
LARGEST_PENALTY = 2.0


def read_settings(body: Body, served: ServedModel, most: int, least: int = 1) -> Settings:
    """Return the settings of a request.

    Args:
        body: of the request.
        served: what holds where the request says nothing.
        most: the `max_tokens` where the request names none.
        least: the smallest `max_tokens`.

    Raises:
        RequestError: a field that cannot be used, by its name.
    """
    given = _read_parameters(body, served)
    sampler = body.text("sampler") or served.settings.sampler
    if sampler == "greedy" and given.get("temperature") == 0:
        del given["temperature"]  # which is what it says
    _check_sampler(sampler, given)
    return replace(
        served.settings,
        sampler=sampler,
        profile=_read_profile(body, served),
        changes={},
        max_tokens=_read_max_tokens(body, most, least),
        seed=body.whole("seed", -LARGEST_SEED - 1, LARGEST_SEED, served.settings.seed),
        stop=_read_stops(body, served.limits) or served.settings.stop,
        **given,
    )


def _read_parameters(body: Body, served: ServedModel) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, parameter in parameters().items():
        if name not in body:
            continue
        if name == "logit_bias":
            given[name] = _read_biases(body, served)
            continue
        if name in ("presence_penalty", "frequency_penalty"):
            body.number(name, -LARGEST_PENALTY, LARGEST_PENALTY)
        value = body.get(name)
        try:
            given[name] = parameter.rule(value)
        except ValueError as error:
            raise RequestError(f"{name} {error}", name) from None
    return given


def _read_biases(body: Body, served: ServedModel) -> dict[int, float]:
    table = body.table("logit_bias")
    most, size = served.limits.biases, served.config.vocab_size
    if len(table) > most:
        raise RequestError(f"logit_bias may name {most} tokens at most", "logit_bias")
    try:
        biases: dict[int, float] = parameters()["logit_bias"].rule(table)
    except ValueError as error:
        raise RequestError(f"logit_bias {error}", "logit_bias") from None
    if any(abs(bias) > LARGEST_BIAS for bias in biases.values()):
        raise RequestError("logit_bias must be between -100 and 100", "logit_bias")
    if beyond := [token for token in biases if token >= size]:
        message = f"logit_bias names token {beyond[0]}, and the model has {size}"
        raise RequestError(message, "logit_bias")
    return biases


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
    found = body.whole(name, least, LARGEST_WHOLE, most)
    return most if found is None else found


def _read_stops(body: Body, limits: Limits) -> tuple[str, ...]:
    value = body.get("stop")
    listed = [value] if isinstance(value, str) else value
    if listed is None:
        return ()
    if not isinstance(listed, list) or not all(isinstance(stop, str) and stop for stop in listed):
        body.refuse("stop", "must be a text or a list of texts, none of them empty")
    if len(listed) > limits.stops or any(len(stop) > limits.stop_characters for stop in listed):
        most = f"{limits.stops} texts of {limits.stop_characters} characters"
        raise RequestError(f"stop may hold {most} at most", "stop")
    return tuple(listed)


def _read_profile(body: Body, served: ServedModel) -> Profile:
    """Return the profile: one by its name, or fields that a request changes, and its switches."""
    named = body.get("profile")
    profile = served.settings.profile
    if not isinstance(profile, Profile):
        raise TypeError("the settings of a server hold a profile that was read")
    if isinstance(named, str):
        profile = served.profile(named)
    elif isinstance(named, dict):
        changes = dict(named)
        extended = changes.pop("extends", None)
        if isinstance(extended, str):
            profile = served.profile(extended)
        profile = _changed(profile, changes, "profile", served.limits)
    elif named is not None:
        body.refuse("profile", "must be a name or an object of changes")
    profile = _changed(profile, _nested(body.table("set")), "set", served.limits)
    profile = profile.replace(_switches(body))
    _check_branches(profile, served.limits)
    return profile


def _changed(profile: Profile, changes: dict[str, Any], name: str, limits: Limits) -> Profile:
    if not changes:
        return profile
    if len(json.dumps(changes)) > limits.profile_bytes:
        raise RequestError(f"{name} is longer than {limits.profile_bytes:,} bytes", name)
    try:
        return profile.replace(changes, name)
    except (ProfileError, RecursionError) as error:
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
    """Return what `think` and `branch` change: false leaves the intervention out."""
    changes: dict[str, Any] = {}
    if not body.flag("think", True):
        changes["think"] = {"max_insertions": 0}
    branch = body.get("branch")
    if branch is False:
        changes |= {"branch": {"max_branches": 0}, "cntp": {"max_branches": 0}}
    elif isinstance(branch, dict):
        sizes = Body(branch)
        sizes.check_names(("width", "depth"))
        own = {name: sizes.whole(name, 1, 64) for name in ("width", "depth") if name in sizes}
        changes |= {"branch": own, "cntp": own}
    elif branch is not None and branch is not True:
        body.refuse("branch", "must be true, false, or an object with width and depth")
    return changes


def _check_branches(profile: Profile, limits: Limits) -> None:
    for rule in (profile.branch, profile.cntp):
        for name, most in (("width", limits.branch_width), ("depth", limits.branch_depth)):
            if getattr(rule, name) > most:
                raise RequestError(f"the {name} of forks may be {most} at most here", "branch")
