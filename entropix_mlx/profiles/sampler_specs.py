"""The samplers and their parameters: one description for the command line, the server, the settings
screen and the documentation. No MLX, and no sampler yet.

A new sampler is a row of `SAMPLERS` and a module in ``samplers/``; an option of its own is a field
of `sections.SamplerOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from ..errors import SamplerError
from .fields import LARGEST_TOP_K, LARGEST_WHOLE, Finite, Positive, Rule, Share, Whole, rule_of

TokenBiases = dict[Annotated[int, Field(ge=0, le=LARGEST_WHOLE)], Finite]
"""By the ids of tokens, which JSON writes as texts."""
Penalty = Annotated[Finite, Field(ge=-100, le=100)]


@dataclass(frozen=True)
class Parameter:
    """A sampling parameter, which a user states for an answer."""

    type: Any
    help: str
    every: bool = False  # whether every sampler takes it

    @cached_property
    def rule(self) -> Rule:
        return rule_of(self.type)


PARAMETERS: Mapping[str, Parameter] = {
    "temperature": Parameter(Positive, "base temperature (0 makes a baseline greedy)"),
    "top_p": Parameter(
        Annotated[Share, Field(gt=0)], "keep the most probable tokens that reach this mass"
    ),
    "top_k": Parameter(
        Annotated[Whole, Field(ge=0, le=LARGEST_TOP_K)],
        "keep this many of the most probable tokens (0: off, for baselines only)",
    ),
    "min_p": Parameter(Share, "keep tokens of at least this share of the top probability"),
    "logit_bias": Parameter(
        TokenBiases, "add this to the logits of tokens that are given by their ids", every=True
    ),
    "repetition_penalty": Parameter(
        Annotated[Finite, Field(gt=0, le=100)],
        "divide positive logits of tokens in the prompt or answer by this, multiply negative ones"
        " (1: off)",
        every=True,
    ),
    "presence_penalty": Parameter(
        Penalty, "subtract this from the logits of tokens in the answer (0: off)", every=True
    ),
    "frequency_penalty": Parameter(
        Penalty,
        "subtract this from a token's logit for each time that it occurs in the answer (0: off)",
        every=True,
    ),
}
EVERY = tuple(name for name, parameter in PARAMETERS.items() if parameter.every)
FILTERS = tuple(name for name in PARAMETERS if name not in EVERY)


@dataclass(frozen=True)
class SamplerSpec:
    """What is known of a sampler before it is built."""

    name: str
    help: str
    filters: tuple[str, ...] = FILTERS  # parameters beside those that every sampler takes
    module: str = "baselines"  # of the package `samplers`; it builds the sampler
    tree: bool = False  # whether it decides by the thresholds of a profile

    @property
    def takes(self) -> tuple[str, ...]:
        return (*self.filters, *EVERY)

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
        if self.tree and given.get("top_k") == 0:
            raise SamplerError(f"top_k of the {self.name} sampler must be at least 1: it scales it")
        checked = {}
        for name, value in given.items():
            try:
                checked[name] = PARAMETERS[name].rule(value)
            except ValueError as error:
                raise SamplerError(f"{name} of the {self.name} sampler {error}") from None
        return checked


SAMPLERS: Mapping[str, SamplerSpec] = {
    spec.name: spec
    for spec in (
        SamplerSpec(
            "entropix",
            "the decision tree: entropy, varentropy and attention choose the strategy",
            module="entropix",
            tree=True,
        ),
        SamplerSpec("greedy", "the most probable token", filters=()),
        SamplerSpec("temperature", "draw at a fixed temperature"),
        SamplerSpec("top_p", "draw from the most probable tokens that reach a mass"),
        SamplerSpec("min_p", "draw from the tokens of at least a share of the top probability"),
        SamplerSpec(
            "top_n_sigma",
            "draw from the tokens whose logit is within n standard deviations of the largest"
            " (arXiv 2411.07641)",
        ),
        SamplerSpec(
            "p_less", "draw from the tokens at least as probable as Σ p² (arXiv 2509.23234)"
        ),
        SamplerSpec(
            "xtc",
            "at some positions, exclude all probable tokens but the least probable of them (XTC)",
        ),
    )
}
