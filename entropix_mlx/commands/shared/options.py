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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Group, Parameter

from ... import limits
from ...configuration import Configuration
from ...constraints.constraint import CHOICE, GRAMMAR, JSON_SCHEMA, REGEX, Constraint
from ...errors import ConstraintError, ProfileError, SettingsError, brief
from ...files import expanded
from ...profiles.fields import overlaid
from ...profiles.profile import Profile
from ...profiles.sections import MOST_FORKS
from ...records import parse_json, parse_toml
from ...samplers.registry import SAMPLERS
from ...settings import Settings, SettingsOption, described
from . import output

if TYPE_CHECKING:
    import mlx.core as mx

Command = TypeVar("Command", bound=Callable[..., int])

FIRST = Group("Used most", sort_key=1)
CONTENT = Group("What the answer is", sort_key=2)
SAMPLING = Group("Sampling", sort_key=3)
MODEL = Group("Model", sort_key=4)
_FIRST = ("sampler", "max_tokens", "temperature", "seed", "profile")
"""Fields of `Settings` that stand among the ten options that people use most."""


def _to_file(_: Any, tokens: Sequence[Any]) -> Path:
    """Convert a path: the shell leaves the ``~`` of ``--trace=~/file`` as it is."""
    if not tokens[0].value:
        raise ValueError("it is empty: name a file")
    return expanded(tokens[0].value, ValueError)


File = Annotated[Path | None, Parameter(converter=_to_file, n_tokens=1)]
Color = Literal["auto", "always", "never"]


@Parameter(name="*")
@dataclass(frozen=True)
class ModelOptions:
    """Which model to load, and how."""

    model: Annotated[str | None, Parameter(group=FIRST)] = None
    """folder, .gguf file or hub id (default: the demo model, if downloaded)"""
    dequantize: Annotated[bool | None, Parameter(group=MODEL, negative="--no-dequantize")] = None
    """unpack quantized weights: faster on a CPU, takes memory (default: on a CPU that has it)"""
    adapter_path: Annotated[Path | None, Parameter(group=MODEL, converter=_to_file, n_tokens=1)] = (
        None
    )
    """LoRA or DoRA weights to add to the model, as mlx_lm.lora writes them"""
    chat_template_config: Annotated[str, Parameter(group=MODEL)] = "{}"
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

    @property
    def group(self) -> mx.distributed.Group | None:
        """The ranks that compute the model together; None for a process of its own."""
        from ...models.ranks import launched

        return launched()

    @property
    def extras(self) -> dict[str, Any]:
        """Fields of `checkpoints.load.Extras`."""
        variables = parse_json(self.chat_template_config, "--chat-template-config", SettingsError)
        if not isinstance(variables, dict):
            raise SettingsError("--chat-template-config is an object, as in '{\"key\": true}'")
        folder = None if self.adapter_path is None else str(self.adapter_path)
        return {
            "adapter_path": folder,
            "chat_template_config": variables,
            "kv_bits": self.kv_bits,
            "quantized_kv_start": 5000,
        }


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


@dataclass(frozen=True)
class CommandOption:
    """An option that `command` adds to a function."""

    name: str
    type: Any
    default: Any
    help: str
    group: Group | None = None
    names: tuple[str, ...] = ()
    negative: str | tuple[()] = ()

    @property
    def parameter(self) -> inspect.Parameter:
        about = Parameter(
            name=list(self.names) or None, help=self.help, group=self.group, negative=self.negative
        )
        annotation = Annotated[self.type, about]  # type: ignore[name-defined]
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, kind, default=self.default, annotation=annotation)


_CHANGES = (
    CommandOption(
        "set",
        tuple[str, ...],
        (),
        "change a field of the profile, as in thresholds.low_entropy=0.2; may be repeated",
        SAMPLING,
    ),
    CommandOption(
        "think",
        bool | None,
        None,
        "insert thoughts, or never (default: as the profile says)",
        SAMPLING,
        negative="--no-think",
    ),
    CommandOption(
        "branch",
        bool | None,
        None,
        "compare branches where the model is torn, or never (default: as the profile says)",
        SAMPLING,
        negative="--no-branch",
    ),
)
_CONSTRAINTS = (
    CommandOption(
        "schema", File, None, "answer with JSON that fits the JSON schema in this file", FIRST
    ),
    CommandOption("regex", str | None, None, "answer with a text that matches as a whole", CONTENT),
    CommandOption(
        "choice", tuple[str, ...], (), "answer with one of these texts; repeated for each", CONTENT
    ),
    CommandOption(
        "grammar", File, None, "answer with a text of this file's grammar: Lark or GBNF", CONTENT
    ),
)
_OF_ALL = (
    CommandOption("config", File, None, "take defaults of options from this file (TOML)"),
    CommandOption("quiet", bool, False, "print no remarks and no statistics"),
)
_SPECIAL = {"changes": _CHANGES, "constraint": _CONSTRAINTS}
"""Fields of `Settings` that are stated by several options."""


def _options(name: str, defaults: Mapping[str, Any]) -> list[CommandOption]:
    """Return the options of a field of `Settings`."""
    if name in _SPECIAL:
        return [replace(o, default=defaults.get(o.name, o.default)) for o in _SPECIAL[name]]
    field: SettingsOption = described()[name]
    default = defaults.get(name, field.default)
    kind, help = field.type, field.help
    if name == "logit_bias":
        kind, default, help = tuple[str, ...], (), f"{help}: TOKEN=BIAS; may be repeated"
    elif name == "sampler":
        help = f"{help}: {', '.join(SAMPLERS)}"
    elif name == "profile":
        kind = str
    group = FIRST if name in _FIRST else SAMPLING if field.decides else CONTENT
    return [CommandOption(name, kind, default, help[:1].lower() + help[1:], group, field.names)]


GENERATION = (
    *("sampler", "max_tokens", "temperature", "seed", "profile"),
    *("answers", "stop", "loops", "thinking_budget", "constraint"),
    *("top_p", "top_k", "min_p", "logit_bias", "repetition_penalty", "changes"),
    *("attention_layers", "speculation"),
)
"""Fields of `Settings` that commands which generate take; in help they stand in this order."""


def command(*names: str, **defaults: Any) -> Callable[[Command], Command]:
    """Make a command of a function.

    It gets the options that all commands take and, as its argument `settings`, the fields of
    `Settings` called `names`; `defaults` are those of options that differ here. If it has an
    argument `configuration`, that is the user's own file, or the one of ``--config``.
    """
    added = [option for name in names for option in _options(name, defaults)]

    def decorate(function: Command) -> Command:
        signature = inspect.signature(function, eval_str=True)
        has_own_file = "configuration" in signature.parameters
        own = [p for p in signature.parameters.values() if p.name not in _GIVEN]
        given = [*own, *(option.parameter for option in (*added, *_OF_ALL))]

        @functools.wraps(function)
        def run(
            *arguments: Any, config: Path | None = None, quiet: bool = False, **values: Any
        ) -> int:
            output.set_verbose(not quiet)
            if has_own_file:
                values["configuration"] = configuration(config)
            if names:
                words = {option.name: values.pop(option.name, option.default) for option in added}
                values["settings"] = _settings(names, words, defaults)
            return function(*arguments, **values)

        del run.__wrapped__
        run.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in given}
        run.has_own_file = has_own_file  # type: ignore[attr-defined]
        return run  # type: ignore[return-value]

    return decorate


_GIVEN = ("settings", "configuration")
"""Arguments of commands that are no options."""


def configuration(path: Path | None) -> Configuration:
    return Configuration.load_default() if path is None else Configuration.load(path)


def _settings(
    names: Sequence[str], words: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Settings:
    """Return the settings that options state.

    Raises:
        SettingsError, SamplerError, ProfileError, ConstraintError: they do not fit.
    """
    values = {name: words[name] for name in names if name in words}
    values |= {n: value for n, value in defaults.items() if n not in words and n in described()}
    if "logit_bias" in values:
        values["logit_bias"] = dict(map(_bias, values["logit_bias"])) or None
    if "changes" in names:
        values["changes"] = _changes(words)
    if "constraint" in names:
        values["constraint"] = _constraint(words)
    for name in ("answers", "speculation"):
        if isinstance(values.get(name), str) and values[name].lstrip("+-").isdecimal():
            values[name] = limits.whole(values[name], 0)
    settings = Settings(**values)
    settings.check()
    return settings


def _bias(text: str) -> tuple[int, float]:
    token, _, added = text.partition("=")
    try:
        return int(token), float(added)
    except ValueError:
        wanted = "--logit-bias: expected TOKEN=BIAS, a token's id and a number"
        raise SettingsError(f"{wanted}, not {brief(text)}") from None


def _changes(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the profile that --think, --branch and --set change."""
    changes: dict[str, Any] = {}
    if words["think"] is not None:
        most = Profile.load().think.max_insertions if words["think"] else 0
        changes["think"] = {"max_insertions": most}
    if words["branch"] is not None:
        changes["branch"] = {"max_branches": MOST_FORKS if words["branch"] else 0}
    for assignment in words["set"]:
        changes = overlaid(changes, changes_of(assignment))
    return changes


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


def _constraint(words: Mapping[str, Any]) -> Constraint | None:
    """Return the constraint of --schema, --regex, --choice or --grammar.

    Raises:
        ConstraintError: there are several, a file cannot be read, or states no constraint.
    """
    stated = [name for name in ("schema", "regex", "choice", "grammar") if words[name]]
    if len(stated) > 1:
        raise ConstraintError(f"--{stated[0]} and --{stated[1]} are two constraints: leave one out")
    if words["schema"]:
        return Constraint(JSON_SCHEMA, read_schema(words["schema"]))
    if words["grammar"]:
        text = limits.read_named(words["grammar"], limits.CONFIGURATION_BYTES, ConstraintError)
        return Constraint(GRAMMAR, text)
    if words["choice"]:
        return Constraint(CHOICE, list(words["choice"]))
    return Constraint(REGEX, words["regex"]) if words["regex"] else None


def read_schema(path: Path) -> Any:
    """Return the JSON schema of a file.

    Raises:
        ConstraintError: it cannot be read, or is not JSON.
    """
    text = limits.read_named(path, limits.CONFIGURATION_BYTES, ConstraintError)
    return parse_json(text, str(path), ConstraintError)
