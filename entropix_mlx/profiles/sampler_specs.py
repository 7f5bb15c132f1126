"""The samplers and their parameters, as ``samplers.toml`` describes them; no MLX, no sampler yet.

Whoever needs parameters takes them from here: `parameters` lists them with help and rule, `specs`
says which sampler takes which, and `check_parameters` checks those that a user gave.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ProfileError, SamplerError
from .fields import (
    LARGEST,
    LARGEST_TOP_K,
    Number,
    Rule,
    check_biases,
    check_flag,
    check_numbers,
    read_value,
    reject_unknown,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)

FILE = "samplers.toml"

_RANGE = ("low", "high", "above")
_PARAMETER = ("type", "help", *_RANGE)
_SHARED = (*_PARAMETER, "every")
_OPTION = (*_PARAMETER, "default")
_SAMPLER = ("help", "takes", "module", "tree", "parameters", "options")


@dataclass(frozen=True)
class Option:
    """A number, or the like, that a sampler takes."""

    name: str
    help: str
    rule: Rule
    """Checks a value, as `fields.py` says."""
    default: Any = None
    """The value of a sampler's own option where a profile does not state one."""
    every: bool = False
    """Whether every sampler takes it."""


@dataclass(frozen=True)
class SamplerSpec:
    """What is known of a sampler before it is built."""

    name: str
    help: str
    module: str
    """The module of the package `samplers` that builds it."""
    takes: Mapping[str, Option]
    """The shared sampling parameters that can be given, with their ranges for this sampler."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """Its own, which a profile states."""
    tree: bool = False
    """Whether it decides by the thresholds of a profile."""

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return sampling parameters as plain numbers; those that are None are left out.

        Raises:
            SamplerError: the sampler does not take one of them, or it is out of range.
        """
        given = {name: value for name, value in given.items() if value is not None}
        if refused := [name for name in given if name not in self.takes]:
            raise SamplerError(
                f"the {self.name} sampler takes no {' or '.join(refused)}: leave it out"
            )
        values = {}
        for name, value in given.items():
            try:
                values[name] = self.takes[name].rule(value)
            except ValueError as error:
                raise SamplerError(f"{name} of the {self.name} sampler {error}") from None
        return values

    def fitting(self, settings: Record) -> Record:
        """Return `Settings` for this sampler, without the parameters that it would refuse."""
        given = {name: getattr(settings, name) for name in parameters()}
        refused = [name for name, value in given.items() if not self._accepts(name, value)]
        changes: dict[str, Any] = {"sampler": self.name, **dict.fromkeys(refused)}
        return replace(settings, **changes)

    def _accepts(self, name: str, value: Any) -> bool:
        try:
            self.check({name: value})
        except SamplerError:
            return False
        return True

    def complete(self, stated: Any, source: str) -> dict[str, Any]:
        """Return values of all options: those that a profile states, and defaults.

        Args:
            stated: the profile's table ``[samplers.NAME]``.
            source: the profile, for messages.

        Raises:
            ProfileError: it is no table, or an option is unknown or out of range.
        """
        where = f"samplers.{self.name}"
        if not isinstance(stated, Mapping):
            raise ProfileError(f"{source}: [{where}] must be a table")
        reject_unknown(stated, self.options, source, f"{where}.")
        return {
            name: read_value(
                option.rule, stated.get(name, option.default), f"{source}: {where}.{name}"
            )
            for name, option in self.options.items()
        }


@functools.cache
def specs() -> Mapping[str, SamplerSpec]:
    """Return the samplers by name, in the order of the file."""
    return MappingProxyType(read_specs(_table(), FILE))


@functools.cache
def parameters() -> Mapping[str, Option]:
    """Return the sampling parameters that samplers share, by name."""
    return MappingProxyType(_read_parameters(_table(), FILE))


def check_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters as plain numbers; those that are None are left out.

    Raises:
        SamplerError: a value that no sampler takes.
    """
    values = {}
    for name, value in given.items():
        if value is None:
            continue
        try:
            values[name] = parameters()[name].rule(value)
        except ValueError as error:
            raise SamplerError(f"{name} {error}") from None
    return values


def complete(stated: Any, source: str) -> dict[str, dict[str, Any]]:
    """Return the options of the samplers that have some: ``result["top_n_sigma"]["n_sigma"]``.

    Args:
        stated: a profile's tables ``[samplers.NAME]``, which need not state anything.
        source: the profile, for messages.

    Raises:
        ProfileError: it is no table, or a sampler or an option is unknown or out of range.
    """
    if not isinstance(stated, Mapping):
        raise ProfileError(f"{source}: [samplers] must be a table")
    reject_unknown(stated, specs(), source, "samplers.")
    values = {name: spec.complete(stated.get(name, {}), source) for name, spec in specs().items()}
    return {name: options for name, options in values.items() if options}


def read_specs(data: Mapping[str, Any], source: str) -> dict[str, SamplerSpec]:
    """Return the samplers that a table like that of `FILE` describes.

    Raises:
        ProfileError: a key is unknown or missing, or a default is out of its range.
    """
    return {name: _read_spec(name, data, source) for name in data["samplers"]}


def _table() -> dict[str, Any]:
    file = resources.files("entropix_mlx.profiles") / FILE
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _read_parameters(data: Mapping[str, Any], source: str) -> dict[str, Option]:
    return {
        name: _read_option(name, table, _SHARED, source, f"parameters.{name}")
        for name, table in data["parameters"].items()
    }


def _read_spec(name: str, data: Mapping[str, Any], source: str) -> SamplerSpec:
    table, where = data["samplers"][name], f"samplers.{name}"
    reject_unknown(table, _SAMPLER, source, f"{where}.")
    _require(table, ("help", "takes"), source, where)
    shared = _read_parameters(data, source)
    reject_unknown(table["takes"], shared, source, f"{where}.takes: ")
    takes = {parameter: shared[parameter] for parameter in table["takes"]}
    takes |= {parameter: option for parameter, option in shared.items() if option.every}
    narrowed = table.get("parameters", {})
    reject_unknown(narrowed, takes, source, f"{where}.parameters.")
    for parameter, limits in narrowed.items():
        whole = data["parameters"][parameter] | limits
        place = f"{where}.parameters.{parameter}"
        takes[parameter] = _read_option(parameter, whole, _SHARED, source, place)
    options = {
        option: _read_option(option, own, _OPTION, source, f"{where}.options.{option}")
        for option, own in table.get("options", {}).items()
    }
    module, tree = table.get("module", name), table.get("tree", False)
    return SamplerSpec(name, table["help"], module, takes, options, tree)


def _read_option(
    name: str, table: Mapping[str, Any], known: Iterable[str], source: str, where: str
) -> Option:
    reject_unknown(table, known, source, f"{where}.")
    _require(table, ("type", "help"), source, where)
    rule, default = _rule(table, source, where), None
    if "default" in known:
        _require(table, ("default",), source, where)
        default = read_value(rule, table["default"], f"{source}: {where}.default")
    return Option(name, table["help"], rule, default, table.get("every", False))


def _rule(table: Mapping[str, Any], source: str, where: str) -> Rule:
    low = table.get("above", table.get("low", -LARGEST))
    is_open = "above" in table
    rules: dict[str, Rule] = {
        "number": Number(low, table.get("high", LARGEST), open=is_open),
        "whole number": Number(low, table.get("high", LARGEST_TOP_K), whole=True, open=is_open),
        "list of numbers": check_numbers,
        "flag": check_flag,
        "token biases": check_biases,
    }
    reject_unknown([table["type"]], rules, source, f"{where}.type ")
    return rules[table["type"]]


def _require(table: Mapping[str, Any], keys: Iterable[str], source: str, where: str) -> None:
    for key in keys:
        if key not in table:
            raise ProfileError(f"{source}: {where}.{key} is missing")
