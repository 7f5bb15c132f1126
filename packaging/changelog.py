"""Print the changelog's section of a version, given as a tag: v0.1.0.

Exits with 1 if the package has another version, or the changelog has no such section.
"""

import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = runpy.run_path(str(ROOT / "entropix_mlx" / "_version.py"))["__version__"]


def section(changelog: str, version: str) -> str | None:
    """Return what stands below the heading of a version, or None."""
    found = re.search(rf"^## \[?{re.escape(version)}\]?.*\n((?:(?!## ).*\n?)*)", changelog, re.M)
    return found[1].strip() if found else None


if __name__ == "__main__":
    tag = sys.argv[1]
    notes = section((ROOT / "CHANGELOG.md").read_text("utf-8"), VERSION)
    if tag != f"v{VERSION}" or not notes:
        sys.exit(f"the tag is {tag}, _version.py says {VERSION}: the changelog must have a section")
    print(notes)
