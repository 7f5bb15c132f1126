"""The least confidence of each field: a file that `entropix calibrate --fields` writes.

risk = 0.02
rows = 300

[thresholds]
total = 0.93
"customer/name" = inf      # no threshold keeps the risk: always to be reviewed
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tomlkit

from .. import limits
from ..errors import OutputError, ProfileError
from ..files import write_whole, writing
from ..records import parse_toml


def read_thresholds(path: str | Path) -> dict[str, float]:
    """Return the least confidence by field.

    Raises:
        ProfileError: the file cannot be read, or states something else.
    """
    text = limits.read_named(path, limits.PROFILE_BYTES, ProfileError)
    try:
        stated = parse_toml(text)["thresholds"]
        return {str(name): float(least) for name, least in stated.items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ProfileError(
            f"{path} states no thresholds: write it with entropix calibrate --fields"
        ) from error


def write_thresholds(path: Path, thresholds: Mapping[str, float], risk: float, rows: int) -> None:
    """Write such a file.

    Raises:
        OutputError: it cannot be written.
    """
    content = tomlkit.dumps({"risk": risk, "rows": rows, "thresholds": dict(thresholds)})
    with writing(path, OutputError):
        write_whole(path, content)
