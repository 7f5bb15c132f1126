"""A profile: every threshold, coefficient and base parameter of the sampler, read from TOML.

The numbers themselves stand in `profiles/*.toml`, with their meaning; this file gives them names,
types and ranges. A profile file may state only what it changes: the rest comes from the
profile named by its ``extends`` key, `reference` by default.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import ProfileError
from ..step import Metrics

REFERENCE = "reference"
_LARGEST = sys.float_info.max


Check = Callable[[Any, str], None]
"""Raises a `ProfileError` about a value that does not fit; the text says which field it is."""


def _checked_by(check: Check) -> Any:
    return field(metadata={"check": check})


def _real(low: float = -_LARGEST, high: float = _LARGEST) -> Any:
    return _checked_by(_number_check((int, float), "a number", low, high))


def _threshold() -> Any:
    """Return a field that may be infinite: a condition that always holds, or never."""
    return _real(-math.inf, math.inf)


def _whole(low: int, high: float = _LARGEST) -> Any:
    return _checked_by(_number_check((int,), "a whole number", low, high))


def _flag() -> Any:
    return _checked_by(_check_flag)


def _check_flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise ProfileError(f"{where} must be true or false, not {value!r}")


def _number_check(
    kinds: tuple[type[int] | type[float], ...], word: str, low: float, high: float
) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) not in kinds:  # a bool is an int, but not a number here
            raise ProfileError(f"{where} must be {word}, not {value!r}")
        if not low <= value <= high:
            between = f"between {low} and {high}" if high < _LARGEST else f"of at least {low}"
            raise ProfileError(f"{where} must be {word} {between}, not {value!r}")

    return check


def _check_thinking_text(value: Any, where: str) -> None:
    items = value if isinstance(value, list) else [value]
    fits = all(isinstance(v, (str, int)) and not isinstance(v, bool) and v != "" for v in items)
    if not items or not fits:
        raise ProfileError(f"{where} must be a text, a token id, or a list of them, not {value!r}")


def _check_polynomial(value: Any, where: str) -> None:
    check = _number_check((int, float), "a list of numbers", -math.inf, math.inf)
    if not isinstance(value, list) or not value:
        raise ProfileError(f"{where} must be a list of numbers, not {value!r}")
    for coefficient in value:
        check(coefficient, where)


@dataclass(frozen=True)
class Base:
    """Sampling parameters before a strategy changes them."""

    temperature: float = _real(0)
    top_p: float = _real(0, 1)
    top_k: int = _whole(1)
    min_p: float = _real(0, 1)


@dataclass(frozen=True)
class Thresholds:
    """Where the decision tree splits: H in bits, V in bits², margin a probability."""

    low_entropy: float = _threshold()
    low_varentropy: float = _threshold()
    think_min_entropy: float = _threshold()
    think_max_varentropy: float = _threshold()
    branch_max_entropy: float = _threshold()
    branch_min_varentropy: float = _threshold()
    branch_max_margin: float = _threshold()
    resample_min_entropy: float = _threshold()
    resample_min_varentropy: float = _threshold()


@dataclass(frozen=True)
class Think:
    """The thinking text, how often it may be inserted, and the sampling just after it."""

    text: str | int | list[str | int] = _checked_by(_check_thinking_text)
    max_insertions: int = _whole(0)
    min_gap: int = _whole(1)
    temperature_offset: float = _real()
    temperature_slope: float = _real()
    max_temperature: float = _real(0)


@dataclass(frozen=True)
class Rollouts:
    """How far a fork is followed, how its branches are compared, and how often there may be one."""

    width: int = _whole(1, 64)
    width_follows_entropy: bool = _flag()
    width_min_entropy: float = _real(0)
    width_entropy_span: float = _real(1e-6)
    depth: int = _whole(1, 1000)
    entropy_weight: float = _real(0)
    margin: float = _real(0)
    ask_margin: float = _real(0)
    max_branches: int = _whole(0)
    min_gap: int = _whole(0)

    def width_at(self, entropy: float) -> int:
        """Return the number of branches at an entropy in bits (arXiv 2507.03038 if it follows)."""
        if not self.width_follows_entropy:
            return self.width
        share = (entropy * math.log(2) - self.width_min_entropy) / self.width_entropy_span
        return int(1 + (self.width - 1) * min(max(share, 0.0), 1.0))

    @property
    def min_entropy(self) -> float:
        """The least entropy at which there are two branches, in bits; infinite if never."""
        if self.width < 2:
            return math.inf
        if not self.width_follows_entropy:
            return 0.0
        nats = self.width_min_entropy + self.width_entropy_span / (self.width - 1)
        return nats / math.log(2)


@dataclass(frozen=True)
class Branch(Rollouts):
    """What to do at a fork, and how to sample there without rollouts."""

    temperature_offset: float = _real()
    temperature_slope: float = _real()
    max_temperature: float = _real(0)
    top_k_slope: float = _real()
    min_top_k: int = _whole(1)


@dataclass(frozen=True)
class Resample:
    """How to sample where both entropy and varentropy are high."""

    temperature_offset: float = _real()
    temperature_slope: float = _real()
    min_temperature: float = _real(0)
    top_p_slope: float = _real()
    min_top_p: float = _real(0, 1)
    excludes_top: bool = _flag()


@dataclass(frozen=True)
class Adaptive:
    """How to sample everywhere else."""

    candidates: int = _whole(1, 1000)
    temperature_logits: float = _real()
    temperature_attention: float = _real()
    temperature_agreement: float = _real()
    top_p_slope: float = _real()
    min_top_p: float = _real(0, 1)
    max_top_p: float = _real(0, 1)
    top_k_interaction: float = _real()
    top_k_agreement: float = _real()
    min_top_k: int = _whole(1)
    max_top_k: int = _whole(1)
    min_p_slope: float = _real()
    min_min_p: float = _real(0, 1)
    max_min_p: float = _real(0, 1)


@dataclass(frozen=True)
class Confidence:
    """Weights of the published confidence, which makes scores of different positions comparable."""

    entropy: float = _real()
    attention_entropy: float = _real()
    varentropy: float = _real()
    attention_varentropy: float = _real()
    agreement: float = _real()
    interaction_strength: float = _real()

    def of(self, metrics: Metrics[float]) -> float:
        """Return the confidence at one position (spec: score = log p + confidence)."""
        return (
            self.entropy * (1 - metrics.entropy)
            + self.attention_entropy * (1 - metrics.attention_entropy)
            + self.varentropy * (1 - metrics.varentropy)
            + self.attention_varentropy * (1 - metrics.attention_varentropy)
            + self.agreement * metrics.agreement
            + self.interaction_strength * metrics.interaction_strength
        )


@dataclass(frozen=True)
class Baselines:
    """Default parameters of the policies to compare with."""

    temperature: float = _real(0)
    top_p: float = _real(0, 1)
    min_p: float = _real(0, 1)
    n_sigma: float = _real(0)
    adaptive_min_entropy: float = _real(0)
    adaptive_polynomial: list[float] = _checked_by(_check_polynomial)


@dataclass(frozen=True)
class Targets:
    """Which share of tokens each strategy is to decide on, when thresholds are calibrated."""

    argmax: float = _real(0, 1)
    think: float = _real(0, 1)
    branch: float = _real(0, 1)
    resample: float = _real(0, 1)


@dataclass(frozen=True)
class Profile:
    """All that the sampler can be told. `Profile.load` reads one; it is validated by then."""

    name: str
    description: str
    base: Base
    thresholds: Thresholds
    think: Think
    branch: Branch
    resample: Resample
    adaptive: Adaptive
    confidence: Confidence
    baselines: Baselines
    cntp: Rollouts
    targets: Targets
    calibration: dict[str, Any] = field(default_factory=dict)
    """What the thresholds were solved from; empty for a profile written by hand."""

    @classmethod
    def load(cls, profile: str | Path | Profile = REFERENCE) -> Profile:
        """Return the built-in profile of that name, or the one in that TOML file.

        Raises:
            ProfileError: there is none, it is not TOML, or a field is unknown or out of range.
        """
        return profile if isinstance(profile, Profile) else cls._read(profile, [])

    @classmethod
    def _read(cls, profile: str | Path, extending: list[str]) -> Profile:
        """Read a profile that others extend."""
        source, text = read_source(profile)
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ProfileError(f"{source}: not valid TOML: {error}") from error
        if profile == REFERENCE:
            return _build(data, source)
        parent = data.pop("extends", REFERENCE)
        if isinstance(parent, str) and parent not in builtin_names():
            parent = str(Path(profile).parent / parent)
        extending = [*extending, str(profile)]
        if not isinstance(parent, str) or parent in extending:
            raise ProfileError(
                f"{source}: extends must name another profile, which does not extend this one:"
                f" one of {', '.join(builtin_names())}, or a TOML file beside this one"
            )
        data.setdefault("name", Path(profile).stem)
        return cls._read(parent, extending).replace(data, source=source)

    def replace(self, changes: Mapping[str, Any], source: str = "profile") -> Profile:
        """Return a profile with some fields changed: ``{"thresholds": {"low_entropy": 0.2}}``.

        Raises:
            ProfileError: a field is unknown or out of range; `source` says where it stood.
        """
        merged = dataclasses.asdict(self)
        for key, value in changes.items():
            if isinstance(merged.get(key), dict) and isinstance(value, Mapping):
                merged[key] = merged[key] | dict(value)
            else:
                merged[key] = value
        return _build(merged, source)


def builtin_names() -> list[str]:
    """Return the names of the profiles that come with the package."""
    files = resources.files("entropix_mlx.profiles").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def read_source(name: str | Path) -> tuple[str, str]:
    """Return where a profile stands, for messages, and its TOML text, which is not yet checked.

    Raises:
        ProfileError: there is no profile of that name, and no such file.
    """
    if str(name) in builtin_names():
        file = resources.files("entropix_mlx.profiles") / f"{name}.toml"
        return f"profile {name}", file.read_text(encoding="utf-8")
    try:
        return str(name), limits.read_text(Path(name), limits.PROFILE_BYTES)
    except (OSError, ValueError) as error:  # a ValueError: not UTF-8, or a NUL in the name
        raise ProfileError(
            f"no profile {str(name)!r}: give a TOML file, or one of {', '.join(builtin_names())}"
            f" ({getattr(error, 'strerror', None) or error})"
        ) from error


_SECTIONS: dict[str, type] = {
    "base": Base,
    "thresholds": Thresholds,
    "think": Think,
    "branch": Branch,
    "resample": Resample,
    "adaptive": Adaptive,
    "confidence": Confidence,
    "baselines": Baselines,
    "cntp": Rollouts,
    "targets": Targets,
}


def _build(data: dict[str, Any], source: str) -> Profile:
    _reject_unknown(data, [f.name for f in dataclasses.fields(Profile)], source, "")
    values: dict[str, Any] = {}
    for key in ("name", "description"):
        values[key] = data.get(key, "")
        if not isinstance(values[key], str):
            raise ProfileError(f"{source}: {key} must be a text, not {values[key]!r}")
    values["calibration"] = data.get("calibration", {})
    if not isinstance(values["calibration"], dict):
        raise ProfileError(f"{source}: [calibration] must be a table")
    for key, section in _SECTIONS.items():
        if not isinstance(data.get(key), dict):
            raise ProfileError(f"{source}: [{key}] must be a table of numbers")
        values[key] = _build_section(section, data[key], source, key)
    return Profile(**values)


def _build_section(section: type, data: dict[str, Any], source: str, name: str) -> Any:
    fields = dataclasses.fields(section)
    _reject_unknown(data, [f.name for f in fields], source, f"{name}.")
    for f in fields:
        if f.name not in data:
            raise ProfileError(f"{source}: {name}.{f.name} is missing")
        f.metadata["check"](data[f.name], f"{source}: {name}.{f.name}")
    if section is Adaptive:
        _check_order(data, source)
    return section(**data)


def _reject_unknown(data: Iterable[str], known: list[str], source: str, prefix: str) -> None:
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(known)}"
            raise ProfileError(f"{source}: unknown field {prefix}{key}; {hint}")


def _check_order(adaptive: dict[str, Any], source: str) -> None:
    for name in ("top_p", "top_k", "min_p"):
        low, high = adaptive[f"min_{name}"], adaptive[f"max_{name}"]
        if low > high:
            raise ProfileError(
                f"{source}: adaptive.min_{name} ({low}) exceeds adaptive.max_{name} ({high})"
            )
