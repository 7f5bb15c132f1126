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
    from .errors import EntropixError
    from .generation import chat_prompt, generate, stream_generate
    from .loading import load
    from .policy import POLICIES, decide
    from .profile import Profile
    from .step import Decision, Metrics, Origin, Step, Strategy

_HOMES = {
    "EntropixError": "errors",
    "chat_prompt": "generation",
    "generate": "generation",
    "stream_generate": "generation",
    "load": "loading",
    "POLICIES": "policy",
    "decide": "policy",
    "Profile": "profile",
    "Decision": "step",
    "Metrics": "step",
    "Origin": "step",
    "Step": "step",
    "Strategy": "step",
}

__all__ = [
    "POLICIES",
    "Decision",
    "EntropixError",
    "Metrics",
    "Origin",
    "Profile",
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
