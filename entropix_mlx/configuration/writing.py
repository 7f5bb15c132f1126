"""Changing a configuration file; what else stands in it stays, comments too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .. import limits
from ..errors import ConfigurationError
from ..files import reason, write_whole, writing

Value = str | int | float | bool | list[str]
HEADER = "Of entropix chat and view; docs/configuration.md explains it."


def change(path: Path, section: str, values: Mapping[str, Value | None]) -> None:
    """Set values of a section, and take those away that are None.

    The file and its folder are made where they are missing.

    Raises:
        ConfigurationError: the file cannot be read or written, or is no TOML.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        if path.exists():
            document = tomlkit.parse(limits.read_text(path, limits.CONFIGURATION_BYTES))
        else:
            document = tomlkit.document()
            document.add(tomlkit.comment(HEADER))
        table = document.setdefault(section, tomlkit.table())
        for key, value in values.items():
            if value is not None:
                table[key] = value
            elif key in table:
                del table[key]
        text = tomlkit.dumps(document)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {reason(error)}") from error
    except (ValueError, TypeError, TOMLKitError) as error:
        raise ConfigurationError(f"{path} cannot be changed: {error}") from error
    with writing(path, ConfigurationError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
