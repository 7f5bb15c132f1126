"""The limit on open files, which importing mlx-lm would change.

mlx-lm's `utils` sets it to 2,048 and allows no more than 4,096 from then on, which a process cannot
take back; where fewer are allowed, the import fails. Here it is raised to 2,048 at most, as far as
that is allowed, and never lowered.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_loader
from types import ModuleType

ENOUGH = 2048
"""Files that a large model may have."""
CHANGES_THE_LIMIT = "mlx_lm.utils"


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        set_limit = resource.setrlimit
        resource.setrlimit = lambda *_: None
        try:
            super().exec_module(module)
        finally:
            resource.setrlimit = set_limit
        _raise_limit()


class _Finder:
    """Finds the one module that changes the limit, whoever imports it first."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path) if name == CHANGES_THE_LIMIT else None
        if found is None or not isinstance(found.loader, SourceFileLoader):
            return None
        return spec_from_loader(name, _Loader(name, found.loader.path))


def _raise_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def keep_limit() -> None:
    """Guard the import of mlx-lm from now on."""
    sys.meta_path.insert(0, _Finder)
