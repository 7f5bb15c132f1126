"""How to generate, in one record: what a session keeps and a user changes between turns."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .constraints.constraint import Constraint
from .errors import SettingsError, whole_number
from .profiles.fields import LARGEST_WHOLE, Number, Rule, one_of, shown
from .profiles.profile import AUTO, REFERENCE, Profile, resolve
from .profiles.sampler_specs import check_parameters, parameters
from .profiles.sections import MOST_ANSWERS
from .samplers.registry import find_sampler, make_sampler

if TYPE_CHECKING:  # a front end keeps settings before it loads anything
    from .models.base import AttentionLayers
    from .models.config import ModelShape
    from .samplers.base import Sampler

NO_LIMIT = -1  # the `max_tokens` of an answer that may fill the context
BATCH = 8  # answers that are generated at once, unless the caller says otherwise
ATTENTION_LAYERS = ("last", "all")
LOOPS = ("allow", "stop")
SPECULATION_MODES = ("auto", "off")
MAX_PROPOSED = 16  # tokens that may be proposed for one pass
SEED_BITS = 32  # of a seed that was drawn: short enough to be typed again


def number_or_mode(most: int, *modes: str) -> Rule:
    """Return a rule for a whole number from 1, or a word."""
    number = Number(1, most, whole=True)

    def check(value: Any) -> str | int:
        try:
            return str(value) if value in modes else int(number(value))
        except ValueError as error:
            raise ValueError(f"{error}, or one of {', '.join(modes)}") from None

    return check


ANSWERS = number_or_mode(MOST_ANSWERS, "auto")
_RULES: dict[str, Rule] = {
    "max_tokens": Number(NO_LIMIT, LARGEST_WHOLE, whole=True),
    "top_logprobs": Number(0, LARGEST_WHOLE, whole=True),
    "seed": Number(-(2**64), 2**64, whole=True),
    "speculation": number_or_mode(MAX_PROPOSED, *SPECULATION_MODES),
    "answers": ANSWERS,
    "loops": one_of(*LOOPS),
    "thinking_budget": Number(0, LARGEST_WHOLE, whole=True),
}


@dataclass(frozen=True)
class Settings:
    """How an answer is generated. Numbers may be NumPy's.

    Raises:
        SettingsError: a value that no model and no sampler can use.
        SamplerError: a sampling parameter that is out of range.
    """

    max_tokens: int = 256
    """The most tokens to generate; −1 for as many as the context holds."""
    sampler: str = "entropix"
    """The name of a sampler, one of `SAMPLERS`."""
    profile: str | Path | Profile = AUTO
    """Thresholds and coefficients: a profile, its name or its file. ``"auto"`` is the one that was
    calibrated for the model, or ``"reference"``."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of the profile to change: ``{"thresholds": {"low_entropy": 0.2}}``."""
    temperature: float | None = None
    """Replaces the profile's or the baseline's own, as `top_p`, `top_k` and `min_p` do."""
    top_p: float | None = None  # above 0 and at most 1
    top_k: int | None = None  # 0 is off, for the baselines
    min_p: float | None = None  # between 0 and 1
    logit_bias: Mapping[int, float] | None = None
    """What is added to the logits of tokens, by their ids. This and the six that follow change what
    is drawn from, by the formulas in ``samplers/logit_processors.py``; None is off."""
    repetition_penalty: float | None = None
    """Above 0; over the prompt that is given (not what a `prompt_cache` holds) and the answer."""
    presence_penalty: float | None = None
    """Counts the tokens of the answer only; so does `frequency_penalty`."""
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    """At least 0; DRY looks at the prompt and the answer."""
    dry_base: float | None = None  # at least 1; None is 1.75
    dry_allowed_length: int | None = None  # at least 1; None is 2
    seed: int | None = None
    """The same seed gives the same steps on the same machine; None draws a fresh one."""
    attention_layers: AttentionLayers = "last"
    """Which layers' attention is measured: ``"last"`` or ``"all"``."""
    top_logprobs: int = 0
    """How many of the most probable tokens a step lists."""
    loops: str = "allow"
    """``"stop"`` ends an answer that does nothing but repeat itself; see `answer.loops`. Under a
    constraint nothing is ended, but JSON that repeats itself is made to close what is open."""
    speculation: str | int = "auto"
    """Tokens that are proposed where the text repeats itself, and checked in one pass: ``"auto"``
    for as many as pay, ``"off"``, or a number. They change no token but by rounding."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer and are no part of it; a single text stands for itself. Text that
    may yet become one is held back, and is lost where the answer is cancelled meanwhile."""
    answers: str | int = 1
    """Answers that are drawn, of which one is chosen by the section ``answers`` of the profile: a
    number, or ``"auto"`` for more than one only where the first is not sure. For `stream_answers`,
    `generate`, `batch_generate` and `Session`."""
    thinking_budget: int | None = None
    """The most tokens of reasoning, which the model's own end tag ends then; None for no limit."""
    constraint: Constraint | None = None
    """What the answer must match as a whole: a `Constraint`, or an object such as
    ``{"regex": "[0-9]+"}``. No thought and no passage is inserted into such an answer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraint", Constraint.of(self.constraint))
        for name, rule in _RULES.items():
            self._keep(name, rule)
        for name, value in self._overrides().items():
            object.__setattr__(self, name, value)
        if self.attention_layers not in ATTENTION_LAYERS:
            raise SettingsError(
                f"attention_layers must be one of {', '.join(ATTENTION_LAYERS)},"
                f" not {shown(self.attention_layers)}"
            )
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        if not isinstance(self.sampler, str):
            raise SettingsError(f"sampler must be a name, not {shown(self.sampler)}")
        if not isinstance(self.profile, (str, Path, Profile)):
            raise SettingsError(
                f"profile must be a profile, its name or its file, not {shown(self.profile)}"
            )
        if not isinstance(self.changes, Mapping):
            raise SettingsError(f"changes must be a mapping, not {shown(self.changes)}")

    def resolved(self, config: ModelShape) -> ResolvedSettings:
        """Return the settings of one answer of a model, as the engine takes them.

        Raises:
            ProfileError: no such profile, a bad one, or a change of it that does not fit.
            SamplerError: no such sampler, or an option that it does not take.
        """
        profile = self.profile
        if not isinstance(profile, Profile) or self.changes:
            profile = resolve(profile, config, self.changes)
        seed = draw_seed() if self.seed is None else self.seed
        settings = replace(self, profile=profile, changes={}, seed=seed)
        sampler = make_sampler(self.sampler, profile, settings._overrides())
        return ResolvedSettings(settings, sampler, seed)

    def check(self) -> None:
        """Raise what `resolved` would, as far as that does not depend on a model."""
        find_sampler(self.sampler).check(self._overrides())
        named = REFERENCE if self.profile == AUTO else self.profile
        Profile.load(named).replace(self.changes)

    @property
    def options(self) -> dict[str, Any]:
        """What is not the default, without sampler and seed; a profile by its name."""
        given: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("sampler", "seed") or value == getattr(DEFAULTS, each.name):
                continue
            if each.name == "profile":
                value = value.name if isinstance(value, Profile) else str(value)
            elif each.name == "changes":
                value = {name: table for name, table in value.items() if table}
            elif isinstance(value, Constraint):
                value = value.to_dict()
            given[each.name] = value
        return {name: value for name, value in given.items() if value not in ({}, ())}

    def _overrides(self) -> dict[str, Any]:
        return check_parameters({name: getattr(self, name) for name in parameters()})

    def _keep(self, name: str, rule: Rule) -> None:
        value = getattr(self, name)
        if value is None and name in ("seed", "thinking_budget"):
            return
        try:
            object.__setattr__(self, name, rule(value))
        except ValueError as error:
            raise SettingsError(f"{name} {error}") from None


def draft_length(tokens: Any) -> int:
    """Return how many tokens a draft model is to propose for a pass.

    Raises:
        TypeError: it is no whole number.
        SettingsError: so many cannot be proposed.
    """
    length = whole_number("the number of draft tokens", tokens, least=1)
    if length > MAX_PROPOSED:
        raise SettingsError(
            f"a draft model proposes at most {MAX_PROPOSED} tokens for a pass, not {length}"
        )
    return length


def draw_seed() -> int:
    return secrets.randbits(SEED_BITS)


@dataclass(frozen=True)
class ResolvedSettings:
    """Settings whose profile is found, whose seed is drawn and whose sampler is built."""

    settings: Settings
    sampler: Sampler
    seed: int

    @property
    def profile(self) -> Profile:
        return self.sampler.profile

    @property
    def most_answers(self) -> int:
        """How many answers may be drawn."""
        answers = self.settings.answers
        return answers if isinstance(answers, int) else self.profile.answers.count

    def with_seed(self, seed: int) -> ResolvedSettings:
        return replace(self, settings=replace(self.settings, seed=seed), seed=seed)


def _stop_strings(value: Any) -> tuple[str, ...]:
    listed = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else value
    strings = tuple(listed)
    if not all(string and isinstance(string, str) for string in strings):
        raise SettingsError(f"stop must be texts, none of them empty, not {shown(listed)}")
    return strings


DEFAULTS = Settings()  # what `Settings.options` leaves out
