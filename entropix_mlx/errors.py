"""Every error that this package raises on purpose: a subclass of `EntropixError`.

Each message says what is wrong and what to do next. An argument of a wrong type is a TypeError, as
everywhere in Python; `check_type` and `whole_number` raise it with the argument's name.
"""

from __future__ import annotations

import operator
import reprlib
from typing import Any


class EntropixError(Exception):
    """The base class of all errors below."""


class ModelNotFoundError(EntropixError):
    """No folder, file, installed package or hub repository of that name."""


class DownloadError(EntropixError):
    """A file cannot be downloaded, or is not the one that was expected."""


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


class ConstraintError(EntropixError):
    """A constraint cannot be compiled or followed, or a token is not what it allows."""


class PromptError(EntropixError):
    """The prompt is empty, or the chat template refuses the messages."""


class ContextLengthError(EntropixError):
    """The prompt does not fit into the model's context."""


class SessionError(EntropixError):
    """A conversation cannot be read or written, or has no such turn, answer or step."""


class NotesError(EntropixError):
    """A folder of notes cannot be read or searched."""


class TraceError(EntropixError):
    """A trace cannot be read or written."""


class DeviceError(EntropixError):
    """MLX cannot be used on this machine."""


class NonFiniteLogitsError(EntropixError):
    """The model computed NaN or infinite logits."""


def check_type(name: str, value: object, kind: type, *, optional: bool = False) -> None:
    """Check the type of an argument; where it is optional, None is allowed, too.

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
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 60


def brief(value: object) -> str:
    """Return a value for a message: on one line, however large or deep it is."""
    try:
        return _BRIEF.repr(value)
    except ValueError:  # Python refuses to write a whole number of more than 4300 digits
        return "a number of thousands of digits"


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message; some are pages long, some empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else repr(error)
