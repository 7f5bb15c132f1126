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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import limits
from .errors import ConfigurationError, EntropixError, brief
from .profiles.profile import user_folder
from .records import parse_toml

KEY_VARIABLE = "ENTROPIX_API_KEY"
"""The variable of the environment that holds the key of a server, there and for its clients."""
OPTIONS, SCREEN, KEYS = "options", "screen", "keys"
THEME, COLOURS = "theme", "colours"


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
    def load(cls, path: Path | None = None) -> Configuration:
        """Read a file: by default that at `default_path`, without which nothing is configured.

        Raises:
            ConfigurationError: it cannot be read, is not TOML, or has an unknown section or key.
        """
        if path is None:
            path = default_path()
            if not os.path.lexists(path):
                return cls(path)
        text = limits.read_named(path, limits.CONFIGURATION_BYTES, ConfigurationError)
        try:
            content = parse_toml(text)
        except ValueError as error:
            raise ConfigurationError(f"{path} is not TOML: {error}") from error
        return _checked(cls(path, text=text), content)

    def fault(self, section: str, key: str, message: str) -> ConfigurationError:
        """Return the error about a key of a section, or about a section, whose name is both."""
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


def _checked(file: Configuration, content: Mapping[str, Any]) -> Configuration:
    """Return the configuration with the content of its file."""
    from pydantic import BaseModel, ConfigDict, StrictStr, ValidationError, constr

    class Screen(BaseModel):
        model_config = ConfigDict(extra="forbid")
        theme: StrictStr | None = None
        colours: StrictStr | None = None

    class Sections(BaseModel):
        model_config = ConfigDict(extra="forbid")
        options: dict[str, Any] = {}
        screen: Screen = Screen()
        keys: dict[str, constr(strict=True, min_length=1)] = {}  # type: ignore[valid-type]

    try:
        read = Sections.model_validate(content)
    except ValidationError as error:
        where = error.errors()[0]["loc"]
        raise file.fault(str(where[0]), str(where[-1]), _why(error.errors()[0])) from None
    return replace(file, options=read.options, keys=read.keys, **read.screen.model_dump())


def _why(mistake: Any) -> str:
    if mistake["type"] == "extra_forbidden":
        return "there is no such section or key"
    return f"it {mistake['msg'].removeprefix('Input ')}, not {brief(mistake['input'])}"


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
