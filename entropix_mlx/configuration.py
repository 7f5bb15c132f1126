"""The configuration file: defaults of options, the theme, keys.

The file is TOML and has four sections, each of which may be missing::

    [options]            # defaults of command-line options, by their long names
    max-tokens = 512
    [screen]
    theme = "nord"
    colours = "surprise"
    focus = true
    [keys]               # by the ids that docs/configuration.md lists
    "chat.duel" = "f9"
    [aliases]            # other names of a server's models
    gpt-4o-mini = "llama-3.2-1b"
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import limits
from .errors import ConfigurationError
from .files import write_whole, writing
from .profiles.profile import user_folder
from .records import parse_toml

OPTIONS, SCREEN, KEYS, ALIASES = "options", "screen", "keys", "aliases"
THEME, COLOURS, FOCUS = "theme", "colours", "focus"
_SCREEN_VALUES = {
    THEME: (str, 'the name of a theme, as in "nord"'),
    COLOURS: (str, '"strategy", "surprise" or "none"'),
    FOCUS: (bool, "true or false"),
}
"""The type of each value of `[screen]`, and how it is written."""
HEADER = "Of entropix chat and view; docs/configuration.md explains it."

Value = str | int | float | bool | list[str]


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
    focus: bool = False
    """Show nothing but the text."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of actions, by the ids of their bindings."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Models by other names for them."""
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

    def _with(self, content: Mapping[str, Any]) -> Configuration:
        for section, values in content.items():
            if section not in (OPTIONS, SCREEN, KEYS, ALIASES):
                known = f"[{OPTIONS}], [{SCREEN}], [{KEYS}] or [{ALIASES}]"
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
        aliases = content.get(ALIASES, {})
        for key, value in aliases.items():
            if not isinstance(value, str) or not value:
                raise self.fault(ALIASES, key, "it must be the name of a model")
        options = content.get(OPTIONS, {})
        return Configuration(
            self.path,
            options,
            screen.get(THEME),
            screen.get(COLOURS),
            screen.get(FOCUS, False),
            keys,
            aliases,
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


def change(path: Path, section: str, values: Mapping[str, Value | None]) -> None:
    """Set values of a section of a file, and remove those that are None; all else stays.

    The file and its folder are made where they are missing.

    Raises:
        ConfigurationError: the file cannot be read or written, or is not TOML.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        if path.exists():
            text = limits.read_named(path, limits.CONFIGURATION_BYTES, ConfigurationError)
            document = tomlkit.parse(text)
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
    except (OSError, ValueError, TypeError, RecursionError, TOMLKitError) as error:
        raise ConfigurationError(f"{path} cannot be changed: {error}") from error
    with writing(path, ConfigurationError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
