"""The fields of a request that say how to generate, as `Settings`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError, create_model

from ...errors import ProfileError, SamplerError
from ...profiles.fields import Number, overlaid, shown
from ...profiles.profile import Profile
from ...profiles.sampler_specs import parameters
from ...profiles.sections import MOST_FORKS
from ...samplers.registry import find_sampler
from ...settings import NO_LIMIT, Settings, described
from ..model_info import ServedModel
from .errors import RequestError
from .fields import Fields, Flag, Json, Text, refusal, ruled, whole

LARGEST_BIAS, MOST_BIASES = 100.0, 2048
MOST_STOPS, LONGEST_STOP = 16, 512
SMALLEST_TOP_P = 1e-9
"""What a `top_p` of 0 means, which OpenAI takes: the most probable token."""
MOST_FIELDS, LONGEST_PROFILE = 512, 2**16
"""Of an inline profile, or of `set`, the latter as JSON."""
WIDEST_FORK, DEEPEST_FORK = 16, 256


def _profile(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError(f"must be a name or an object, not {shown(value)}")
    return value if isinstance(value, str) else _not_too_large(value)


def _not_too_large(value: Any) -> Json:
    """Refuse what is larger than any profile, before anything is done with it."""
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {shown(value)}")
    if len(value) > MOST_FIELDS or len(json.dumps(value)) > LONGEST_PROFILE:
        raise ValueError(f"may have {MOST_FIELDS} fields and {LONGEST_PROFILE:,} bytes at most")
    return value


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(t, str) and t for t in stops):
        raise ValueError(
            f"must be a text or a list of texts, none of them empty, not {shown(value)}"
        )
    if len(stops) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stops):
        raise ValueError(f"may hold {MOST_STOPS} texts of {LONGEST_STOP} characters at most")
    return tuple(stops)


def _top_p(value: Any) -> float:
    is_zero = isinstance(value, int | float) and not isinstance(value, bool) and not value
    return float(parameters()["top_p"].rule(SMALLEST_TOP_P if is_zero else value))


def _biases(stated: Any) -> dict[int, float]:
    value: dict[int, float] = parameters()["logit_bias"].rule(stated)
    if len(value) > MOST_BIASES:
        raise ValueError(f"may name {MOST_BIASES} tokens at most")
    if any(abs(bias) > LARGEST_BIAS for bias in value.values()):
        raise ValueError(f"must be between -{LARGEST_BIAS:g} and {LARGEST_BIAS:g}")
    return value


class ForkSize(Fields):
    """``branch`` as an object."""

    width: Annotated[int | None, whole(1, 64)] = None
    depth: Annotated[int | None, whole(1, 64)] = None


def _branch(value: Any) -> Any:
    if not isinstance(value, bool | dict):
        raise ValueError(f"must be true, false or an object, not {shown(value)}")
    try:
        return value if isinstance(value, bool) else ForkSize.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"is wrong: {refusal(error, ForkSize.model_fields)}") from None


class ThresholdFields(Fields):
    """The fields that thresholds depend on."""

    model: Text | None = None
    sampler: Text | None = None
    profile: Annotated[Any, ruled(_profile)] = None
    set: Annotated[Json, ruled(_not_too_large)] = Field(default_factory=dict)
    think: Flag = True
    branch: Annotated[Any, ruled(_branch)] = None


class ExplainedFields(ThresholdFields):
    """The body of /v1/explain."""

    step: Any = None


if TYPE_CHECKING:
    _Described = ThresholdFields
else:
    _Described = create_model(
        "_Described",
        __base__=ThresholdFields,
        **{
            option.name: (Annotated[Any, ruled(option.rule)], None)
            for option in described().values()
            if option.served and option.name != "sampler"
        },
    )


class SampledFields(_Described):
    """The fields that say how to generate: those of `Settings` that are served, and these."""

    max_tokens: Annotated[int | None, whole(NO_LIMIT)] = None
    max_completion_tokens: Annotated[int | None, whole(NO_LIMIT)] = None
    stop: Annotated[tuple[str, ...], ruled(_stops)] = ()
    top_p: Annotated[
        float | None,
        ruled(_top_p),
    ] = None
    presence_penalty: Annotated[float | None, ruled(Number(-2.0, 2.0))] = None
    frequency_penalty: Annotated[float | None, ruled(Number(-2.0, 2.0))] = None
    logit_bias: Annotated[
        dict[int, float] | None,
        ruled(_biases),
    ] = None


def settings_of(stated: SampledFields, served: ServedModel, most: int, least: int = 1) -> Settings:
    """Return the settings of a request; `most` tokens if it has no limit, and at least `least`.

    Raises:
        RequestError: a sampler does not take a parameter, a profile is wrong, or a limit too low.
    """
    given = {
        option.name: value
        for option in described().values()
        if option.served and (value := getattr(stated, option.name)) is not None
    }
    del given["stop"]
    given |= {"sampler": stated.sampler or served.settings.sampler}
    if given["sampler"] == "greedy" and given.get("temperature") == 0:
        del given["temperature"]  # which is what it says
    _check_parameters(given, served)
    return replace(
        served.settings,
        **given
        | {
            "profile": profile_of(stated, served),
            "changes": {},
            "max_tokens": _max_tokens(stated, most, least),
            "stop": stated.stop or served.settings.stop,
        },
    )


def _check_parameters(given: Json, served: ServedModel) -> None:
    try:
        kind = find_sampler(given["sampler"])
    except SamplerError as error:
        raise RequestError(str(error), "sampler") from None
    for name in parameters():
        if name in given:
            try:
                kind.check({name: given[name]})
            except SamplerError as error:
                raise RequestError(str(error), name) from None
    size = served.config.vocab_size
    if beyond := [token for token in given.get("logit_bias", {}) if token >= size]:
        message = f"logit_bias names token {beyond[0]}, and the model has {size}"
        raise RequestError(message, "logit_bias")


def _max_tokens(stated: SampledFields, most: int, least: int) -> int:
    completion = stated.max_completion_tokens is not None
    name = "max_completion_tokens" if completion else "max_tokens"
    given = stated.max_completion_tokens if completion else stated.max_tokens
    if given is None:
        return most
    if given != NO_LIMIT and given < least:
        raise RequestError(f"{name} must be at least {least}, not {given}", name)
    return given


def profile_of(stated: ThresholdFields, served: ServedModel) -> Profile:
    """Return the profile that a request means.

    Raises:
        RequestError: there is none of that name, or a field is wrong.
    """
    named, profile = stated.profile, served.profile
    if isinstance(named, str):
        profile = served.find_profile(named)
    elif named is not None:
        changes = dict(named)
        extended = changes.pop("extends", None)
        if isinstance(extended, str):
            profile = served.find_profile(extended)
        profile = _changed(profile, changes, "profile")
    profile = _changed(profile, _nested(stated.set), "set")
    profile = profile.replace(_switches(stated))
    rule = profile.branch
    for name, most in (("width", WIDEST_FORK), ("depth", DEEPEST_FORK)):
        if getattr(rule, name) > most:
            raise RequestError(f"the {name} of forks may be {most} at most here", "branch")
    return profile


def _changed(profile: Profile, changes: Json, name: str) -> Profile:
    try:
        return profile.replace(changes, name) if changes else profile
    except ProfileError as error:
        raise RequestError(str(error), name) from None


def _nested(assignments: Json) -> Json:
    """Return ``{"thresholds.low_entropy": 0.2}`` as tables within tables."""
    result: Json = {}
    for name, assigned in assignments.items():
        value = assigned
        for part in reversed(name.split(".")[:4]):
            value = {part: value}
        result = overlaid(result, value)
    return result


def _switches(stated: ThresholdFields) -> Json:
    """Return the changes by `think` and `branch`: false leaves the intervention out.

    Forks are also turned on, if the profile has none.
    """
    changes: Json = {} if stated.think else {"think": {"max_insertions": 0}}
    branch = stated.branch
    if isinstance(branch, ForkSize):
        changes["branch"] = branch.model_dump(exclude_none=True) | {"max_branches": MOST_FORKS}
    elif branch is not None:
        changes["branch"] = {"max_branches": MOST_FORKS if branch else 0}
    return changes
