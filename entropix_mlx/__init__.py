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
    from .answer.hooks import Hooks as Hooks
    from .api.batch import batch_generate as batch_generate
    from .api.generate import generate as generate
    from .api.generate import stream_answers as stream_answers
    from .api.generate import stream_generate as stream_generate
    from .api.prompts import chat_prompt as chat_prompt
    from .api.score import score as score
    from .chat.local import Session as Session
    from .checkpoints.load import load as load
    from .constraints.constraint import Constraint as Constraint
    from .constraints.fields import Field as Field
    from .errors import EntropixError as EntropixError
    from .profiles.profile import Profile as Profile
    from .samplers.entropix import decide as decide
    from .samplers.registry import SAMPLERS as SAMPLERS
    from .settings import Settings as Settings
    from .step import Branch as Branch
    from .step import Decision as Decision
    from .step import Fork as Fork
    from .step import Metrics as Metrics
    from .step import Origin as Origin
    from .step import Step as Step
    from .step import Strategy as Strategy
    from .traces.explain import explain as explain

_PUBLIC = {
    "chat.local": ("Session",),
    "checkpoints.load": ("load",),
    "answer.hooks": ("Hooks",),
    "api.batch": ("batch_generate",),
    "constraints.constraint": ("Constraint",),
    "constraints.fields": ("Field",),
    "api.generate": ("generate", "stream_answers", "stream_generate"),
    "api.prompts": ("chat_prompt",),
    "api.score": ("score",),
    "errors": ("EntropixError",),
    "samplers.entropix": ("decide",),
    "samplers.registry": ("SAMPLERS",),
    "traces.explain": ("explain",),
    "profiles.profile": ("Profile",),
    "settings": ("Settings",),
    "step": ("Fork", "Decision", "Metrics", "Origin", "Branch", "Step", "Strategy"),
}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - they are all texts


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
