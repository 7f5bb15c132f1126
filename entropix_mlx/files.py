"""Writing a file so that there is never half of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file; if that is interrupted, an older file stays as it was.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
