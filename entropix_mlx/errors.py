"""Every error that this package raises on purpose.

EntropixError
├── ModelNotFoundError        no folder, file, installed package or hub repository of that name
├── UnsupportedModelError     an architecture that nothing here computes, or a feature of one
├── WeightsError              weights that are missing, damaged, or do not fit the configuration
├── TokenizerError            a tokenizer that is missing, or of a kind that cannot be built
├── OutputError               a folder, a page or stdout that cannot be written
├── ProfileError              a profile that cannot be found, parsed, or used
├── SamplerError               no such sampler, or an option that it does not take
├── SettingsError             an option of a generation that has an impossible value
├── ConfigurationError        a configuration file that cannot be read, or says what is impossible
├── PromptError               an empty prompt, or messages that the chat template refuses
├── ContextLengthError        a prompt longer than the model's context
├── SessionError              a conversation that cannot be read or written, or a turn or step that
│                             it does not have
├── NotesError                a folder of notes that cannot be read, or its index cannot be kept
├── TraceError                a trace that cannot be read or written
├── BenchError                a program of the bench that failed, or its folder cannot be written
├── GroupError                ranks that cannot work together, or do not reach one another
└── NonFiniteLogitsError      the model computed NaN or infinite logits

Each message says what is wrong and what to do next. An argument of a wrong type is a TypeError, as
everywhere in Python; `check_type` and `whole_number` raise it with the argument's name.
"""

from __future__ import annotations

import operator
import reprlib
from typing import Any


class EntropixError(Exception):
    """The root of the tree: catch it to catch everything above."""


class ModelNotFoundError(EntropixError):
    """No folder, file, installed package or hub repository of that name."""


class UnsupportedModelError(EntropixError):
    """Nothing here computes the architecture, or it uses a feature that is not handled."""


class WeightsError(EntropixError):
    """Weights are missing, truncated, or do not fit the configuration."""


class TokenizerError(EntropixError):
    """The tokenizer is missing, or of a kind that cannot be built."""


class OutputError(EntropixError):
    """A model folder, a page or stdout cannot be written."""


class ProfileError(EntropixError):
    """A profile cannot be found, parsed, or used."""


class SamplerError(EntropixError):
    """No such sampler, or an option that the sampler does not take."""


class SettingsError(EntropixError):
    """An option of a generation has a value that it cannot have."""


class ConfigurationError(EntropixError):
    """A configuration file cannot be read or written, or has an impossible value."""


class PromptError(EntropixError):
    """The prompt is empty, or the chat template refuses the messages."""


class ContextLengthError(EntropixError):
    """The prompt does not fit into the model's context."""


class SessionError(EntropixError):
    """A conversation cannot be read or written, or has no such turn, answer or step."""


class NotesError(EntropixError):
    """A folder of notes cannot be read, or its index cannot be kept."""


class TraceError(EntropixError):
    """A trace cannot be read or written."""


class BenchError(EntropixError):
    """A program that the bench starts failed, or its temporary folder cannot be written."""


class GroupError(EntropixError):
    """The ranks of a group cannot work together, or do not reach one another."""


class LostRankError(GroupError):
    """A rank is gone, or never came."""


class NonFiniteLogitsError(EntropixError):
    """The model computed NaN or infinite logits."""


def check_type(name: str, value: object, kind: type, *, optional: bool = False) -> None:
    """Check the type of an argument.

    Args:
        name: of the argument, for the message.
        value: what the caller gave.
        kind: what it must be an instance of.
        optional: None is allowed, too.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, kind) and not (optional and value is None):
        raise TypeError(f"{name} must be of type {kind.__name__}, not {type(value).__name__}")


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return an argument that must be a whole number: an int, or one of NumPy's integers.

    Raises:
        TypeError: it is something else; True and False are no numbers here.
        SettingsError: it is below `least`.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}") from None
    if least is not None and number < least:
        raise SettingsError(f"{name} must be at least {least}, not {number}")
    return number


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 80


def brief(value: object) -> str:
    """Return a value as a message shows it: on one line, however large or deep it is."""
    return _BRIEF.repr(value)


def first_line(error: BaseException) -> str:
    """Return the first line of what another library's error says; some say pages, some nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else repr(error)
