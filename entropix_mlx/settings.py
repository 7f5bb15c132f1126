"""How to generate, in one record: what a session keeps and a user changes between turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .profiles.choice import AUTO, resolve
from .profiles.profile import REFERENCE, Profile

if TYPE_CHECKING:  # a front end keeps settings before it loads anything
    from .models.llama import AttentionLayers, LlamaConfig
    from .policies.policy import Policy


@dataclass(frozen=True)
class Settings:
    """The options of `stream_generate`, under the same names; its documentation explains them."""

    max_tokens: int = 256
    sampler: str = "entropix"
    profile: str | Path | Profile = AUTO
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    attention_layers: AttentionLayers = "last"
    top_logprobs: int = 0

    def policy(self, config: LlamaConfig) -> Policy:
        """Build the policy for a model.

        Raises:
            PolicyError: no such sampler, or an option that it does not take.
            ProfileError: no such profile, or a bad one.
        """
        from .policies.registry import Overrides, make_policy

        overrides = Overrides(self.temperature, self.top_p, self.top_k, self.min_p)
        profile = resolve(self.profile, config, self.changes)
        return make_policy(self.sampler, profile, overrides)

    def check(self) -> None:
        """Raise what `policy` would, as far as that does not depend on a model."""
        from .policies.registry import Overrides, make_policy

        overrides = Overrides(self.temperature, self.top_p, self.top_k, self.min_p)
        named = REFERENCE if self.profile == AUTO else self.profile
        make_policy(self.sampler, Profile.load(named).replace(self.changes), overrides)
