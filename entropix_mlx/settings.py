"""How to generate, in one record: what a session keeps and a user changes between turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .profile import REFERENCE, Profile

if TYPE_CHECKING:  # a front end keeps settings before it loads anything
    from .llama import AttentionLayers
    from .plan import Policy


@dataclass(frozen=True)
class Settings:
    """The options of `stream_generate`, under the same names; its documentation explains them."""

    max_tokens: int = 256
    sampler: str = "entropix"
    profile: str | Path | Profile = REFERENCE
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    attention_layers: AttentionLayers = "last"
    top_logprobs: int = 0

    def policy(self) -> Policy:
        """Build the policy.

        Raises:
            PolicyError: no such sampler, or an option that it does not take.
            ProfileError: no such profile, or a bad one.
        """
        from .policy import Overrides, make_policy

        overrides = Overrides(self.temperature, self.top_p, self.top_k, self.min_p)
        return make_policy(self.sampler, self.profile, overrides)
