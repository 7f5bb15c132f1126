"""The configuration file: defaults of options, the theme, keys.

The file is TOML and has four sections, each of which may be missing::

    [options]            # defaults of command-line options, by their long names
    max-tokens = 512
    [screen]
    theme = "nord"
    colours = "surprise"
    [keys]               # by the ids that docs/chat.md lists
    "chat.tune" = "f9"
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import limits
from .errors import ConfigurationError, EntropixError
from .profiles.profile import user_folder
from .records import parse_toml

KEY_VARIABLE = "ENTROPIX_API_KEY"
"""The variable of the environment that holds the key of a server, there and for its clients."""
OPTIONS, SCREEN, KEYS = "options", "screen", "keys"
THEME, COLOURS = "theme", "colours"
_SCREEN_VALUES = {
    THEME: (str, 'the name of a theme, as in "nord"'),
    COLOURS: (str, '"strategy", "surprise", "none" or "underline"'),
}
"""The type of each value of `[screen]`, and how it is written."""


def default_path() -> Path:
    return user_folder().parent / "config.toml"


@dataclass(frozen=True)
class Configuration:
    """The content of a configuration file, as far as it is known without the command line."""

    path: Path
    """Of the file, which need not exist."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of options, by their names in the file."""
    theme: str | None = None
    colours: str | None = None
    """What the colours of tokens show."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of actions, by the ids of their bindings."""
    text: str = ""

    @classmethod
    def load(cls, path: Path) -> Configuration:
        """Read a file.

        Raises:
            ConfigurationError: it cannot be read, is not TOML, or has an unknown section or key.
        """
        try:
            text = limits.read_named(path, limits.CONFIGURATION_BYTES, ConfigurationError)
            content = parse_toml(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path} is not TOML: {error}") from error
        return cls(path, text=text)._with(content)

    @classmethod
    def load_default(cls) -> Configuration:
        """Read the file at `default_path`; without one, the configuration is empty.

        Raises:
            ConfigurationError: as for `load`.
        """
        path = default_path()
        return cls.load(path) if os.path.lexists(path) else cls(path)

    def fault(self, section: str, key: str, message: str) -> ConfigurationError:
        line = _line_of(self.text, section, key)
        where = f"{self.path}, line {line}" if line else str(self.path)
        return ConfigurationError(f"{where}: {key}: {message}")

    def check_settings(self) -> None:
        """Check what the file says of fields of `Settings`.

        Raises:
            ConfigurationError: a value is impossible.
        """
        from .settings import Settings, described

        for name, option in described().items():
            for key in self.options.keys() & option.keys:
                try:
                    Settings(**{name: self.options[key]}).check()
                except EntropixError as error:
                    raise self.fault(OPTIONS, key, str(error)) from error

    def _with(self, content: Mapping[str, Any]) -> Configuration:
        for section, values in content.items():
            if section not in (OPTIONS, SCREEN, KEYS):
                known = f"[{OPTIONS}], [{SCREEN}] or [{KEYS}]"
                raise self.fault(section, section, f"there is no such section: write {known}")
            if not isinstance(values, dict):
                raise self.fault("", section, f"write [{section}] in a line of its own")
        screen, keys = content.get(SCREEN, {}), content.get(KEYS, {})
        for key, value in screen.items():
            if key not in _SCREEN_VALUES:
                raise self.fault(SCREEN, key, f"there is only {', '.join(_SCREEN_VALUES)}")
            kind, form = _SCREEN_VALUES[key]
            if not isinstance(value, kind):
                raise self.fault(SCREEN, key, f"it must be {form}")
        for key, value in keys.items():
            if not isinstance(value, str) or not value:
                raise self.fault(KEYS, key, 'it must be a key, as in "ctrl+j" or "f9"')
        options = content.get(OPTIONS, {})
        return Configuration(
            self.path,
            options,
            screen.get(THEME),
            screen.get(COLOURS),
            keys,
            self.text,
        )


def _line_of(text: str, section: str, key: str) -> int | None:
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
