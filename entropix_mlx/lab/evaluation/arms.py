"""Arms: the ways of answering that are compared, and the prompts that all of them are given."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...api.prompt_file import PromptLine
from ...errors import ProfileError
from ...profiles.fields import overlaid
from ...samplers.registry import find_sampler
from ...settings import Settings
from .questions import Question

CHAT, PLAIN = "chat", "plain"
FORMS = (CHAT, PLAIN)
STOP = "\n"
"""What ends a graded answer: it is one line; a worked solution of GSM8K is shown as one, too."""


OWN_PROFILE = ":"
"""Stands between a sampler and its profile where it is not that of the others."""


@dataclass(frozen=True)
class Arm:
    """One way of answering."""

    name: str
    """Only what tells it from the other arms of its run."""
    settings: Settings
    """Without a seed: that depends on the question, and is the same for all arms."""


@dataclass(frozen=True)
class Axes:
    """What arms are made of: every combination is one."""

    samplers: Sequence[str]
    """Names; one with a profile of its own is written ``name:profile``."""
    profiles: Sequence[str | Path]
    """Of the samplers that name none."""
    changes: Sequence[tuple[str, Mapping[str, Mapping[str, Any]]]] = (("", {}),)
    """Changes of the profile, each with what it is called."""
    temperatures: Sequence[float | None] = (None,)


def arms_of(axes: Axes, base: Settings) -> list[Arm]:
    """Return every combination of the axes; what takes no temperature has one arm for all.

    Args:
        axes: what to combine.
        base: what all arms have in common.

    Raises:
        SamplerError, ProfileError: a combination that cannot be used.
    """
    arms: dict[str, Arm] = {}
    for named in axes.samplers:
        sampler, colon, own = named.partition(OWN_PROFILE)
        if colon and not own:
            raise ProfileError(
                f"{named!r} has no profile behind its colon: name one, or leave it out"
            )
        profiles = (own,) if colon else axes.profiles
        for profile in profiles:
            for told, changes in axes.changes:
                for temperature in _temperatures(sampler, axes):
                    parts = [named]
                    parts += [Path(profile).stem] if len(profiles) > 1 else []
                    parts += [told] if told else []
                    parts += [] if temperature is None else [f"T={temperature:g}"]
                    settings = replace(
                        base,
                        sampler=sampler,
                        profile=profile,
                        changes=overlaid(base.changes, changes),
                        temperature=temperature if temperature is not None else base.temperature,
                    )
                    settings.check()
                    name = " ".join(parts)
                    arms[name] = Arm(name, settings)
    return list(arms.values())


def _temperatures(sampler: str, axes: Axes) -> Sequence[float | None]:
    """Return the temperatures of a sampler; greedy and some others take none, and have one arm."""
    return axes.temperatures if "temperature" in find_sampler(sampler).takes else (None,)


def seed_of(question: Question, seed: int) -> int:
    """Return the seed of an answer: all arms share it, and no two questions do.

    A draw depends on the seed and the position only. With one seed for all questions, the answers
    to all of them would be drawn with the same random numbers.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{question.id}".encode()).digest()[:4], "big")


def asked(question: Question, form: str, line: int, settings: Settings) -> PromptLine:
    """Return the prompt of a question: worked examples as earlier turns, or a text to continue."""
    if form == CHAT:
        messages = [
            {"role": role, "content": text}
            for example in question.examples
            for role, text in zip(("user", "assistant"), example, strict=True)
        ]
        messages.append({"role": "user", "content": question.text})
        return PromptLine(line, settings, messages=tuple(messages), id=question.id)
    shown = [f"Question: {text}\nAnswer: {answer}\n\n" for text, answer in question.examples]
    prompt = "".join(shown) + f"Question: {question.text}\nAnswer:"
    return PromptLine(line, settings, prompt=prompt, id=question.id)
