"""Reading a configuration file, and saying in which line a mistake is.

The file is TOML and has three sections, each of which may be missing::

    [options]            # defaults of command-line options, by their long names
    max-tokens = 512
    [screen]
    theme = "nord"
    [keys]               # by the ids that docs/configuration.md lists
    "chat.duel" = "f9"

What an option may be is known to the command line, and which themes and keys there are to the
terminal UI; both use `Configuration.fault` for what they refuse.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import ConfigurationError
from ..files import reason
from ..profiles.selection import user_folder

OPTIONS, SCREEN, KEYS = "options", "screen", "keys"
THEME = "theme"


def default_path() -> Path:
    """Return where `entropix chat` and `entropix view` look for a configuration file."""
    return user_folder().parent / "config.toml"


@dataclass(frozen=True)
class Configuration:
    """What a configuration file says, as far as that can be told without the command line."""

    path: Path
    """Where it is, or would be written."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of options, by names as in the file."""
    theme: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of actions, by the ids of their bindings."""
    text: str = ""
    """The whole file."""

    @classmethod
    def load(cls, path: Path) -> Configuration:
        """Read a file.

        Raises:
            ConfigurationError: it cannot be read, is no TOML, or says what no file can say.
        """
        try:
            text = limits.read_text(path, limits.CONFIGURATION_BYTES)
            content = tomllib.loads(text)
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {reason(error)}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path} is not a text in UTF-8: {error.reason}") from error
        except ValueError as error:
            raise ConfigurationError(f"{path} is no TOML: {error}") from error
        return cls(path, text=text)._with(content)

    @classmethod
    def load_default(cls) -> Configuration:
        """Read the file at `default_path`; one that is not there says nothing.

        Raises:
            ConfigurationError: as for `load`.
        """
        path = default_path()
        return cls.load(path) if path.exists() else cls(path)

    def fault(self, section: str, key: str, told: str) -> ConfigurationError:
        """Return the error for a value of this file that nobody can use."""
        line = _line_of(self.text, section, key)
        where = f"{self.path}, line {line}" if line else str(self.path)
        return ConfigurationError(f"{where}: {key}: {told}")

    def _with(self, content: Mapping[str, Any]) -> Configuration:
        """Return this with what was read."""
        for section, values in content.items():
            if section not in (OPTIONS, SCREEN, KEYS):
                told = f"there is no such section: write [{OPTIONS}], [{SCREEN}] or [{KEYS}]"
                raise self.fault(section, section, told)
            if not isinstance(values, dict):
                raise self.fault("", section, f"write [{section}] in a line of its own")
        screen, keys = content.get(SCREEN, {}), content.get(KEYS, {})
        for key, value in screen.items():
            if key != THEME:
                raise self.fault(SCREEN, key, f"there is only {THEME}")
            if not isinstance(value, str):
                raise self.fault(SCREEN, key, 'it must be the name of a theme, as in "nord"')
        for key, value in keys.items():
            if not isinstance(value, str) or not value:
                raise self.fault(KEYS, key, 'it must be a key, as in "ctrl+j" or "f9"')
        options = content.get(OPTIONS, {})
        return Configuration(self.path, options, screen.get(THEME), keys, self.text)


def _line_of(text: str, section: str, key: str) -> int | None:
    """Return the number of the line in which a key of a section is set, or a section begins."""
    current = ""
    named = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
    for number, line in enumerate(text.splitlines(), 1):
        if heading := re.match(r"\s*\[\s*([^\]]*?)\s*\]", line):
            current = heading[1].strip("\"'")
            if current == key == section:
                return number
        elif section in (current, key) and named.match(line):
            return number
    return None
