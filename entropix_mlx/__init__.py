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
    from .chat.session import Session
    from .checkpoints.loading import load
    from .decoding.generation import generate, stream_generate
    from .decoding.prompts import chat_prompt
    from .errors import EntropixError
    from .policies.registry import POLICIES, decide
    from .profiles.profile import Profile
    from .settings import Settings
    from .step import Branch, Decision, Metrics, Origin, Rollout, Step, Strategy

_HOMES = {
    "EntropixError": "errors",
    "chat_prompt": "decoding.prompts",
    "generate": "decoding.generation",
    "stream_generate": "decoding.generation",
    "load": "checkpoints.loading",
    "POLICIES": "policies.registry",
    "decide": "policies.registry",
    "Profile": "profiles.profile",
    "Session": "chat.session",
    "Settings": "settings",
    "Branch": "step",
    "Decision": "step",
    "Metrics": "step",
    "Origin": "step",
    "Rollout": "step",
    "Step": "step",
    "Strategy": "step",
}

__all__ = [
    "POLICIES",
    "Branch",
    "Decision",
    "EntropixError",
    "Metrics",
    "Origin",
    "Profile",
    "Rollout",
    "Session",
    "Settings",
    "Step",
    "Strategy",
    "__version__",
    "chat_prompt",
    "decide",
    "generate",
    "load",
    "stream_generate",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
