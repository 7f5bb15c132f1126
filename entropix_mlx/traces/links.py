"""Links from a trace to files of whoever reads it: only where they cannot lead elsewhere."""

from __future__ import annotations

from pathlib import PurePosixPath


def file_link(folder: str, name: str) -> str | None:
    """Return a ``file:`` link to a file of a folder; None where it would lead elsewhere.

    A trace may come from anybody: the link leads below the folder that it names, or nowhere.

    Args:
        folder: absolute path.
        name: path of the file, relative to it, with slashes.
    """
    base, path = PurePosixPath(folder), PurePosixPath(name)
    inside = name and not path.is_absolute() and not {"..", "."} & set(name.split("/"))
    if not inside or base.root != "/" or ".." in base.parts:  # "//": another machine's
        return None
    return (base / path).as_uri()
