"""Entropy-aware decoding for Llama-family models on Apple Silicon.

    from entropix_mlx import chat_prompt, load, stream_generate

    model, tokenizer = load()
    for step in stream_generate(model, tokenizer, chat_prompt(tokenizer, "Why is the sky blue?")):
        print(step.text, step.entropy, step.varentropy, step.strategy)

Names are imported when they are first used, so that ``entropix --help`` and readers of traces do
not wait for MLX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .chat.session import Session as Session
    from .checkpoints.loading import load as load
    from .decoding.batch import batch_generate as batch_generate
    from .decoding.draft import Draft as Draft
    from .decoding.generation import generate as generate
    from .decoding.generation import stream_generate as stream_generate
    from .decoding.prompts import chat_prompt as chat_prompt
    from .decoding.scoring import score as score
    from .errors import EntropixError as EntropixError
    from .policies.decide import decide as decide
    from .policies.registry import POLICIES as POLICIES
    from .profiles.explain import Explanation as Explanation
    from .profiles.explain import explain as explain
    from .profiles.profile import Profile as Profile
    from .settings import Settings as Settings
    from .step import Branch as Branch
    from .step import Decision as Decision
    from .step import Metrics as Metrics
    from .step import Origin as Origin
    from .step import Rollout as Rollout
    from .step import Step as Step
    from .step import Strategy as Strategy

_PUBLIC = {
    "chat.session": ("Session",),
    "checkpoints.loading": ("load",),
    "decoding.batch": ("batch_generate",),
    "decoding.draft": ("Draft",),
    "decoding.generation": ("generate", "stream_generate"),
    "decoding.prompts": ("chat_prompt",),
    "decoding.scoring": ("score",),
    "errors": ("EntropixError",),
    "policies.decide": ("decide",),
    "policies.registry": ("POLICIES",),
    "profiles.explain": ("Explanation", "explain"),
    "profiles.profile": ("Profile",),
    "settings": ("Settings",),
    "step": ("Branch", "Decision", "Metrics", "Origin", "Rollout", "Step", "Strategy"),
}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - they are all texts


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
