"""Options that several commands share.

A command is a function: its arguments are its options, and its docstring is their help, which
cyclopts reads. (Typer would need each option, with its help and its choices, as an object in the
signature; cyclopts takes dataclasses, docstrings and `Literal` as they are, names the nearest
option after a mistake, and imports a command when it is asked for.) The decorator `command` adds
what all commands take and, for those that generate, the fields of `Settings`, which describe
themselves.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from cyclopts import App, Group, Parameter
from cyclopts.argument import Argument, ArgumentCollection
from cyclopts.config import Dict
from cyclopts.validators import Number

from ... import limits
from ...configuration import OPTIONS, Configuration
from ...constraints.constraint import CHOICE, GRAMMAR, JSON_SCHEMA, REGEX, Constraint
from ...errors import ConfigurationError, ConstraintError, ProfileError, SettingsError, brief
from ...files import expanded
from ...profiles.fields import nearest, overlaid
from ...profiles.profile import Profile
from ...profiles.sections import MOST_FORKS
from ...records import parse_json, parse_toml
from ...samplers.registry import SAMPLERS
from ...settings import BATCH, Settings, SettingsOption, described
from . import output

Command = TypeVar("Command", bound=Callable[..., int])

NEVER = ("config", "help", "version")
"""Options that a configuration file cannot set."""
OWN_MODEL = ("model", "ask", "trace", "notes")
"""Options that a file may have, and that a chat with a server or a recording ignores there."""
FIRST = Group("Used most", sort_key=1)
CONTENT = Group("What the answer is", sort_key=2)
SAMPLING = Group("Sampling", sort_key=3)
MODEL = Group("Model", sort_key=4)


def _to_file(_: Any, tokens: Sequence[Any]) -> Path:
    """Convert a path: the shell leaves the ``~`` of ``--trace=~/file`` as it is."""
    if not tokens[0].value:
        raise ValueError("it is empty: name a file")
    return expanded(tokens[0].value, ValueError)


def _to_object(_: Any, tokens: Sequence[Any]) -> dict[str, Any]:
    value = parse_json(tokens[0].value, tokens[0].keyword, SettingsError)
    if not isinstance(value, dict):
        raise ValueError('it must be an object, as in {"key": true}')
    return value


def _check_share(_: Any, value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError("it is a share from 0 to 1")


File = Annotated[Path | None, Parameter(converter=_to_file, n_tokens=1)]
Count = Annotated[int, Parameter(validator=Number(gte=1, lte=limits.QUESTIONS))]
Share = Annotated[float, Parameter(validator=_check_share)]
Color = Literal["auto", "always", "never"]
Object = Annotated[
    dict[str, Any] | None, Parameter(converter=_to_object, n_tokens=1, accepts_keys=False)
]


@Parameter(name="*")
@dataclass(frozen=True)
class ModelOptions:
    """Which model to load, and how."""

    model: Annotated[str | None, Parameter(group=FIRST)] = None
    """folder, .gguf file or hub id (default: the demo model, if downloaded)"""
    adapter_path: Annotated[File, Parameter(group=MODEL)] = None
    """LoRA or DoRA weights to add to the model, as mlx_lm.lora writes them"""
    chat_template_config: Annotated[Object, Parameter(group=MODEL)] = None
    """variables of the chat template as JSON, such as {"enable_thinking": false}"""
    kv_bits: Annotated[int | None, Parameter(group=MODEL)] = None
    """quantize the KV cache to so many bits, once it holds 5,000 tokens"""

    def __post_init__(self) -> None:
        if self.model == "":
            raise SettingsError("--model is empty: leave it out for the demo model")

    @property
    def name(self) -> str:
        from ...checkpoints.hub import default_model

        name = self.model if self.model is not None else default_model()
        return os.path.basename(name.rstrip("/")) or name


@Parameter(name="*")
@dataclass(frozen=True)
class Form:
    """How answers are printed: as text, unless one of the two kinds of JSON is asked for."""

    json: Annotated[bool, Parameter(group=FIRST)] = False
    """print one JSON object with text and totals"""
    jsonl: bool = False
    """print each step with its metrics as a line of JSON"""
    color: Color = "auto"
    """colour tokens by strategy (auto: on a terminal)"""

    def __post_init__(self) -> None:
        if self.json and self.jsonl:
            raise SettingsError("--json and --jsonl are two forms of output: leave one out")


@Parameter(name="*")
@dataclass(frozen=True)
class BatchOptions:
    """Where many answers go, and how many are generated at once."""

    output: Annotated[File, Parameter(name=["--output", "-o"])] = None
    """write each answer as a line of this file as soon as it ends (JSON Lines)"""
    resume: bool = False
    """generate only the answers that --output does not have"""
    size: Annotated[Count, Parameter(name="--batch")] = BATCH
    """answers at once (fewer if memory is short)"""

    def __post_init__(self) -> None:
        if self.resume and self.output is None:
            raise SettingsError("--resume continues a file: name it with --output")


@Parameter(name="*", group=SAMPLING)
@dataclass(frozen=True)
class ProfileChanges:
    """The options that change fields of the profile."""

    set: tuple[str, ...] = ()
    """change a field of the profile, as in thresholds.low_entropy=0.2; may be repeated"""
    think: Annotated[bool | None, Parameter(negative="--no-think")] = None
    """insert thoughts, or never (default: as the profile says)"""
    branch: Annotated[bool | None, Parameter(negative="--no-branch")] = None
    """compare branches where the model is torn, or never (default: as the profile says)"""

    @property
    def value(self) -> dict[str, Any]:
        """The changed fields, as `Settings.changes` holds them."""
        changes: dict[str, Any] = {}
        if self.think is not None:
            most = Profile.load().think.max_insertions if self.think else 0
            changes["think"] = {"max_insertions": most}
        if self.branch is not None:
            changes["branch"] = {"max_branches": MOST_FORKS if self.branch else 0}
        for assignment in self.set:
            changes = overlaid(changes, changes_of(assignment))
        return changes


@Parameter(name="*", group=CONTENT)
@dataclass(frozen=True)
class ConstraintOptions:
    """The options that state what an answer must match."""

    schema: Annotated[File, Parameter(group=FIRST)] = None
    """answer with JSON that fits the JSON schema in this file"""
    regex: str | None = None
    """answer with a text that matches as a whole"""
    choice: tuple[str, ...] = ()
    """answer with one of these texts; repeated for each"""
    grammar: File = None
    """answer with a text of this file's grammar: Lark or GBNF"""

    @property
    def value(self) -> Constraint | None:
        """The constraint.

        Raises:
            ConstraintError: there are several, a file cannot be read, or states no constraint.
        """
        stated = [option.name for option in fields(self) if getattr(self, option.name)]
        if len(stated) > 1:
            raise ConstraintError(
                f"--{stated[0]} and --{stated[1]} are two constraints: leave one out"
            )
        if self.schema:
            return Constraint(JSON_SCHEMA, read_schema(self.schema))
        if self.grammar:
            return Constraint(GRAMMAR, _read(self.grammar))
        if self.choice:
            return Constraint(CHOICE, list(self.choice))
        return Constraint(REGEX, self.regex) if self.regex else None


RECORDS: Mapping[str, Any] = {"changes": ProfileChanges, "constraint": ConstraintOptions}
"""Fields of `Settings` that several options state."""
PASSED = ("settings", "configuration")
"""Arguments of commands that are no options."""


def without(*names: str) -> list[str]:
    """Return the fields of `Settings` that have an option, but for some."""
    return [name for name, field in described().items() if field.option and name not in names]


def command(*names: str, **defaults: Any) -> Callable[[Command], Command]:
    """Make a command of a function.

    It gets the options that all commands take and, as its argument `settings`, the fields of
    `Settings` called `names`; `defaults` are those that differ here. If it has an argument
    `configuration`, that is the user's own file, or the one of ``--config``.
    """

    def decorate(function: Command) -> Command:
        signature = inspect.signature(function, eval_str=True)
        has_own_file = "configuration" in signature.parameters
        own = [p for p in signature.parameters.values() if p.name not in PASSED]
        added = [_parameter(described()[name], defaults) for name in names]

        @functools.wraps(function)
        def run(
            *arguments: Any, config: Path | None = None, quiet: bool = False, **values: Any
        ) -> int:
            output.set_verbose(not quiet)
            if has_own_file:
                values["configuration"] = Configuration.load(config)
            if names:
                stated = {name: values.pop(name) for name in names if name in values}
                records = {name: stated[name].value for name in RECORDS.keys() & stated.keys()}
                values["settings"] = Settings(**{**defaults, **stated, **records})
                values["settings"].check()
            return function(*arguments, **values)

        del run.__wrapped__
        options = [*own, *added, CONFIG, QUIET]
        run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in options}
        run.has_own_file = has_own_file  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return decorate


def _option(name: str, kind: Any, default: Any, /, **about: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, Parameter(**about)],
    )


CONFIG = _option("config", File, None, help="take defaults of options from this file (TOML)")
QUIET = _option("quiet", bool, False, help="print no remarks and no statistics")


def _parameter(field: SettingsOption, defaults: Mapping[str, Any]) -> inspect.Parameter:
    """Return the option of a field of `Settings`."""
    if field.name in RECORDS:
        record = RECORDS[field.name]
        return _option(field.name, record, record(), name="*")
    help = field.help[:1].lower() + field.help[1:]
    if field.name == "sampler":
        help = f"{help}: {', '.join(SAMPLERS)}"
    kind = str if field.name == "profile" else field.type
    group = FIRST if field.first else SAMPLING if field.decides else CONTENT
    default = defaults.get(field.name, field.default)
    return _option(field.name, kind, default, name=field.names or None, help=help, group=group)


def apply_configuration(
    app: App, arguments: ArgumentCollection, all_options: Callable[[], set[str]]
) -> None:
    """Give the options of a command that were not typed what the configuration file says.

    Args:
        app: the command.
        arguments: what it takes.
        all_options: returns the options of all commands: those of others are ignored.

    Raises:
        ConfigurationError: no command has such an option, or its value is impossible.
        SettingsError, CycloptsError: its value has the wrong type.
    """
    known = {name: argument for argument in arguments for name in argument.names}
    typed = known["--config"].tokens if "--config" in known else []
    if typed or getattr(app.default_command, "has_own_file", False):
        path = expanded(typed[0].value, ConfigurationError) if typed else None
        file = Configuration.load(path)
        _check_names(file, known, all_options)
        file.check_settings()
        elsewhere = any(known[name].tokens for name in ("--server", "--demo") if name in known)
        skipped = OWN_MODEL if elsewhere else ()
        taken = {key: value for key, value in file.options.items() if key not in skipped}
        source = Dict(taken, source=str(file.path), allow_unknown=True, use_commands_as_keys=False)
        source(app, (), arguments)
    for argument in arguments:
        if int in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                if "." in token.value:  # cyclopts would round it
                    why = f"must be a whole number, not {brief(token.value)}"
                    raise SettingsError(f"{argument.name} {why}")


def _check_names(
    file: Configuration, known: Mapping[str, Argument], all_options: Callable[[], set[str]]
) -> None:
    """Check that each option of a file is one of this command or of another."""
    for key in file.options:
        name = f"--{key.replace('_', '-')}"
        opposite = name in known and name in known[name].negatives
        if key in NEVER or opposite or not (name in known or name in all_options()):
            near = nearest(key, [other.removeprefix("--") for other in known])
            advice = f"did you mean {near}?" if near else "entropix chat --help lists them"
            raise file.fault(OPTIONS, key, f"there is no such option: {advice}")


def changes_of(assignment: str) -> dict[str, Any]:
    """Return the fields of the profile that one --set changes: it is a line of TOML."""
    source = f"--set {assignment}"
    try:
        changes = parse_toml(assignment)
    except ValueError as error:
        raise ProfileError(
            f"{source}: not FIELD=VALUE with a TOML value (a text needs quotes): {error}"
        ) from error
    if not changes:
        raise ProfileError(f"{source}: nothing is set; write FIELD=VALUE")
    Profile.load().replace(changes, source)  # so that an error names this option
    return changes


def read_schema(path: Path) -> Any:
    """Return the JSON schema of a file.

    Raises:
        ConstraintError: it cannot be read, or is not JSON.
    """
    return parse_json(_read(path), str(path), ConstraintError)


def _read(path: Path) -> str:
    return limits.read_named(path, limits.CONFIGURATION_BYTES, ConstraintError)
