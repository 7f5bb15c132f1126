"""How to generate, in one record: what a session keeps and a user changes between turns.

`Settings` describes itself. A field has a type, a default, a rule that its values keep, a docstring
whose first sentence is its help, and says whether samplers decide by it. `described` returns all of
that; the command line, the server, the remote backend, files of prompts, the configuration file and
the settings screen read it. So a new option is its field here, and its use.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    get_args,
    get_type_hints,
)

from pydantic import Field

from .constraints.constraint import Constraint
from .errors import SamplerError, SettingsError
from .profiles.fields import LARGEST_WHOLE, Finite, Rule, one_of, rule_of, shown, whole
from .profiles.profile import AUTO, REFERENCE, Profile, resolve
from .profiles.sampler_specs import PARAMETERS
from .profiles.sections import MOST_ANSWERS
from .samplers.registry import find_sampler, make_sampler

if TYPE_CHECKING:  # a front end keeps settings before it loads anything
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
    number = whole(1, most)

    def check(value: Any) -> str | int:
        try:
            return str(value) if value in modes else int(number(value))
        except ValueError as error:
            raise ValueError(f"{error}, or one of {', '.join(modes)}") from None

    return check


ANSWERS = number_or_mode(MOST_ANSWERS, "auto")
Times = Annotated[Finite, Field(ge=1, le=MOST_ANSWERS)]


def of_type(kind: type | tuple[type, ...], what: str) -> Rule:
    """Return a rule for values of a type, which `what` names in a message."""

    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"must be {what}, not {shown(value)}")
        return value

    return check


def stop_strings(value: Any) -> tuple[str, ...]:
    """Return texts as a tuple; a rule. A single text stands for itself."""
    listed = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else value
    strings = tuple(listed)
    if not all(string and isinstance(string, str) for string in strings):
        raise ValueError(f"must be texts, none of them empty, not {shown(listed)}")
    return strings


class SettingsOption(NamedTuple):
    """The description of a field of `Settings`; `described` adds name, type and default."""

    rule: Rule
    """Returns a value as it is kept, or raises a `ValueError` that begins with "must"."""
    decides: bool = True
    """Whether a sampler, or the profile that it is built from, reads it."""
    served: bool = True
    """Whether a request to the server states it as it is."""
    first: bool = False
    """Whether its option is one of those that people use most."""
    option: bool = True
    """Whether it has an option of the command line."""
    error: type[SettingsError] | type[SamplerError] = SettingsError
    names: tuple[str, ...] = ()
    """Of the option, where that is not called as the field."""
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def help(self) -> str:
        parameter = PARAMETERS.get(self.name)
        return parameter.help if parameter else _docstrings()[self.name]

    @property
    def keys(self) -> set[str]:
        """The keys of a configuration file that set it."""
        names = self.names or (self.name.replace("_", "-"),)
        return {name.lstrip("-") for name in names}


def _whole(low: int, high: int = LARGEST_WHOLE, **about: Any) -> SettingsOption:
    return SettingsOption(whole(low, high), decides=False, **about)


def _parameter(name: str, **about: Any) -> SettingsOption:
    """A sampling parameter, as `PARAMETERS` describes it."""
    return SettingsOption(PARAMETERS[name].rule, error=SamplerError, **about)


@dataclass(frozen=True)
class Settings:
    """How an answer is generated. Numbers may be NumPy's.

    Raises:
        SettingsError: a value that no model and no sampler can use.
        SamplerError: a sampling parameter that is out of range.
        ConstraintError: no constraint, or one that is too large.
    """

    max_tokens: Annotated[int, _whole(NO_LIMIT, first=True, names=("--max-tokens", "-m"))] = 256
    """Tokens of an answer at most; -1 for as many as the context holds."""
    sampler: Annotated[str, SettingsOption(of_type(str, "a name"), first=True)] = "entropix"
    """How tokens are chosen. One of `SAMPLERS`."""
    profile: Annotated[
        str | Path | Profile,
        SettingsOption(
            of_type((str, Path, Profile), "a profile, its name or its file"),
            served=False,
            first=True,
        ),
    ] = AUTO
    """Thresholds: a name, a TOML file, or auto for what was calibrated for the model. Or a
    `Profile`; without a calibration, auto is ``"reference"``."""
    changes: Annotated[
        Mapping[str, Mapping[str, Any]], SettingsOption(of_type(Mapping, "a mapping"), served=False)
    ] = field(default_factory=dict)
    """Fields of the profile to change. For example ``{"thresholds": {"low_entropy": 0.2}}``."""
    temperature: Annotated[
        float | None, _parameter("temperature", first=True, names=("--temp", "--temperature"))
    ] = None
    top_p: Annotated[float | None, _parameter("top_p")] = None
    top_k: Annotated[int | None, _parameter("top_k")] = None
    min_p: Annotated[float | None, _parameter("min_p")] = None
    logit_bias: Annotated[Mapping[int, float] | None, _parameter("logit_bias", option=False)] = None
    repetition_penalty: Annotated[float | None, _parameter("repetition_penalty")] = None
    presence_penalty: Annotated[float | None, _parameter("presence_penalty", option=False)] = None
    frequency_penalty: Annotated[float | None, _parameter("frequency_penalty", option=False)] = None
    seed: Annotated[int | None, _whole(-(2**64), 2**64, first=True)] = None
    """The same seed gives the same steps on the same machine. None draws a fresh one."""
    attention_layers: Annotated[
        Literal["last", "all"], SettingsOption(one_of(*ATTENTION_LAYERS), False, False)
    ] = "last"
    """Layers whose attention is measured: last or all."""
    top_logprobs: Annotated[int, _whole(0, served=False)] = 0
    """How many of the most probable tokens a step lists."""
    loops: Annotated[Literal["allow", "stop"], SettingsOption(one_of(*LOOPS), decides=False)] = (
        "allow"
    )
    """Stop ends an answer that does nothing but repeat itself. See `answer.loops`. Under a
    constraint nothing is ended, but JSON that repeats itself is made to close what is open."""
    speculation: Annotated[
        int | str, SettingsOption(number_or_mode(MAX_PROPOSED, *SPECULATION_MODES), False, False)
    ] = "auto"
    """Tokens that are proposed at a time where the text repeats itself: auto, off or N. They are
    checked in one pass, and change no token but by rounding."""
    stop: Annotated[tuple[str, ...], SettingsOption(stop_strings, decides=False)] = ()
    """Texts before which an answer ends. A single text stands for itself. Text that may yet become
    one is held back, and is lost where the answer is cancelled meanwhile."""
    answers: Annotated[int | str, SettingsOption(ANSWERS, decides=False)] = 1
    """Answers of which the best is chosen: N, or auto for several where the first is unsure. The
    section ``answers`` of the profile says how. For `stream_answers`, `generate`, `batch_generate`
    and `Session`."""
    budget: Annotated[float, SettingsOption(rule_of(Times), decides=False)] = 2.0
    """Tokens that answers=auto may spend, in times those of single answers. On average over the
    prompts of a batch or a conversation."""
    thinking_budget: Annotated[int | None, _whole(0)] = None
    """Tokens of reasoning at most. The model's own end tag ends it then; None is no limit."""
    constraint: Annotated[Constraint | None, SettingsOption(Constraint.of, decides=False)] = None
    """What the answer must match as a whole: a `Constraint`, or an object such as
    ``{"regex": "[0-9]+"}``. No thought and no passage is inserted into such an answer."""

    def __post_init__(self) -> None:
        for name, option in described().items():
            value = getattr(self, name)
            if value is None and option.default is None:
                continue
            try:
                object.__setattr__(self, name, option.rule(value))
            except ValueError as error:
                raise option.error(f"{name} {error}") from None

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
        sampler = make_sampler(self.sampler, profile, settings.parameters)
        return ResolvedSettings(settings, sampler, seed)

    def check(self) -> None:
        """Raise what `resolved` would, as far as that does not depend on a model."""
        find_sampler(self.sampler).check(self.parameters)
        named = REFERENCE if self.profile == AUTO else self.profile
        Profile.load(named).replace(self.changes)

    @property
    def options(self) -> dict[str, Any]:
        """What is not the default, without sampler and seed; a profile by its name."""
        given: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("sampler", "seed") or value == described()[each.name].default:
                continue
            if each.name == "profile":
                value = value.name if isinstance(value, Profile) else str(value)
            elif each.name == "changes":
                value = {name: table for name, table in value.items() if table}
            elif isinstance(value, Constraint):
                value = value.to_dict()
            given[each.name] = value
        return {name: value for name, value in given.items() if value not in ({}, ())}

    @property
    def parameters(self) -> dict[str, Any]:
        """The sampling parameters that are stated."""
        given = {name: getattr(self, name) for name in PARAMETERS}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def deciding(self) -> Settings:
        """The same with the defaults of all fields by which no sampler decides."""
        others = {o.name: o.default for o in described().values() if not o.decides}
        return replace(self, **others)


class Options(TypedDict, total=False):
    """The fields of `Settings` as named parameters, for editors and type checkers."""

    max_tokens: int
    sampler: str
    profile: str | Path | Profile
    changes: Mapping[str, Mapping[str, Any]]
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    logit_bias: Mapping[int, float] | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    attention_layers: Literal["last", "all"]
    top_logprobs: int
    loops: Literal["allow", "stop"]
    speculation: int | str
    stop: tuple[str, ...]
    answers: int | str
    budget: float
    thinking_budget: int | None
    constraint: Constraint | None


@functools.cache
def described() -> Mapping[str, SettingsOption]:
    """Return all fields of `Settings` by their names."""
    hints = get_type_hints(Settings, include_extras=True)
    found = {}
    for each in fields(Settings):
        kind, about = get_args(hints[each.name])
        default = {} if each.default is MISSING else each.default
        found[each.name] = about._replace(name=each.name, type=kind, default=default)
    return found


@functools.cache
def _docstrings() -> dict[str, str]:
    """Return the first sentences of the docstrings of the fields, by their names."""
    [settings] = ast.parse(inspect.getsource(Settings)).body
    found = {}
    for statement, after in itertools.pairwise(settings.body):  # type: ignore[attr-defined]
        if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
            text = " ".join(ast.literal_eval(after.value).split())
            found[ast.unparse(statement.target)] = text.partition(". ")[0].rstrip(".")
    return found


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
