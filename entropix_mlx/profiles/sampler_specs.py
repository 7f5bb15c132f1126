"""The samplers and their parameters, as ``samplers.toml`` describes them; no MLX, no sampler
yet."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    reject_unknown,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)

FILE = "samplers.toml"


@dataclass(frozen=True)
class Option:
    """A number, or the like, that a sampler takes."""

    name: str
    rule: Rule  # checks a value, as `fields.py` says
    help: str
    default: Any = None  # the value of a sampler's own option where a profile does not state one
    every: bool = False  # whether every sampler takes it


@dataclass(frozen=True)
class SamplerSpec:
    """What is known of a sampler before it is built."""

    name: str
    help: str
    module: str  # of the package `samplers`; it builds the sampler
    takes: Mapping[str, Option]  # shared parameters that can be given, with its ranges
    options: Mapping[str, Option]  # its own, which a profile states
    tree: bool = False

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
        found = {}
        for name, value in given.items():
            try:
                found[name] = self.takes[name].rule(value)
            except ValueError as error:
                raise SamplerError(f"{name} of the {self.name} sampler {error}") from None
        return found

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
        """Return all options: those of a profile's table ``[samplers.NAME]``, and defaults.

        Raises:
            ProfileError: it is no table, or an option is unknown or out of range.
        """
        where = f"samplers.{self.name}"
        if not isinstance(stated, Mapping):
            raise ProfileError(f"{source}: [{where}] must be a table")
        reject_unknown(stated, self.options, source, f"{where}.")
        found = {}
        for name, option in self.options.items():
            try:
                found[name] = option.rule(stated.get(name, option.default))
            except ValueError as error:
                raise ProfileError(f"{source}: {where}.{name} {error}") from None
        return found


def complete(stated: Any, source: str) -> dict[str, dict[str, Any]]:
    """Return the options of the samplers that have some: ``result["top_n_sigma"]["n_sigma"]``.

    A profile's tables ``[samplers.NAME]`` need not state anything.

    Raises:
        ProfileError: it is no table, or a sampler or an option is unknown or out of range.
    """
    if not isinstance(stated, Mapping):
        raise ProfileError(f"{source}: [samplers] must be a table")
    reject_unknown(stated, specs(), source, "samplers.")
    values = {name: spec.complete(stated.get(name, {}), source) for name, spec in specs().items()}
    return {name: options for name, options in values.items() if options}


@functools.cache
def parameters() -> Mapping[str, Option]:
    shared = _tables()["parameters"]
    return MappingProxyType({name: _option(name, table) for name, table in shared.items()})


@functools.cache
def specs() -> Mapping[str, SamplerSpec]:
    samplers = _tables()["samplers"]
    return MappingProxyType({name: _spec(name, table) for name, table in samplers.items()})


@functools.cache
def _tables() -> dict[str, Any]:
    """Return the file. Its keys are the arguments of `_spec`, `_option` and `_rule`."""
    file = resources.files("entropix_mlx.profiles") / FILE
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _spec(name: str, table: Mapping[str, Any]) -> SamplerSpec:
    shared = _tables()["parameters"]
    every = [parameter for parameter, about in shared.items() if about.get("every")]
    narrower, own = table.get("parameters", {}), table.get("options", {})
    ranges = {each: shared[each] | narrower.get(each, {}) for each in (*table["takes"], *every)}
    return SamplerSpec(
        name=name,
        help=table["help"],
        module=table.get("module", name),
        takes={each: _option(each, about) for each, about in ranges.items()},
        options={option: _option(option, about) for option, about in own.items()},
        tree=table.get("tree", False),
    )


def _option(name: str, table: Mapping[str, Any]) -> Option:
    rule: Rule = check_biases
    if table["type"] != "token biases":
        whole, is_open = table["type"] == "whole number", "above" in table
        low = table["above"] if is_open else table.get("low", -LARGEST)
        rule = Number(low, table.get("high", LARGEST_TOP_K if whole else LARGEST), whole, is_open)
    return Option(name, rule, table["help"], table.get("default"), table.get("every", False))
