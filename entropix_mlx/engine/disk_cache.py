"""Cached texts on the disk: what leaves memory, for prompts that begin alike, also after a restart.

A file holds one text: the ids of its tokens, the arrays of its caches as bytes, and in its metadata
the model, the form of the caches and a checksum of all that. A file that does not fit in any of
these is ignored. It is written aside and renamed when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as mlx_lm_caches
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import first_line
from ..files import written_aside
from ..models.base import LanguageModel
from .cached_text import CachedText

VERSION = 1
SUFFIX = ".safetensors"
IDS = "ids"
LEAST_GAIN = 32
"""Tokens that a file must save, and one in `LEAST_SHARE` of those in it, to be read."""
LEAST_SHARE = 8
MOST_PENDING = 4
"""Texts on their way to the disk; the next one waits."""
STALE_SECONDS = 3600.0
"""After which a file that was never finished is removed."""

_log = logging.getLogger(__name__)

Ids = NDArray[np.int32]
Arrays = Mapping[str, NDArray[Any]]


class DiskCache:
    """The texts of one model in a folder; it belongs on the model's thread.

    Nothing that is wrong with a file or the folder is an error: it is logged, and the text is
    computed.
    """

    def __init__(self, folder: Path, most_bytes: int, key: str, model: LanguageModel) -> None:
        """Look at what is there.

        Args:
            folder: of all models.
            most_bytes: of the files of all models; those used longest ago are removed.
            key: what tells the weights, and how they are run, from all others.
            model: whose caches are written and read.
        """
        known = f"{VERSION} {key} {type(model).__name__} {model.dtype} {model.config}"
        self._key = sha256(known.encode()).hexdigest()
        self._root, self._most = folder, most_bytes
        self._folder = folder / self._key[:32]
        self._model = model
        self._known: dict[Path, Ids] = {}
        self._reported: set[str] = set()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="disk-cache")
        self._pending: deque[Future[None]] = deque()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._tidy()
        except OSError as error:
            self._report(f"{folder} cannot be written: {first_line(error)}")
        for file in self._folder.glob(f"*{SUFFIX}"):
            if file.is_file() and (ids := self._ids_of(file)) is not None:
                self._known[file] = ids

    def take(self, prompt: Sequence[int], known: int) -> CachedText | None:
        """Return a text that begins as a prompt does, if that saves much beside `known` tokens."""
        wanted = np.array(prompt, np.int32)
        best = max(self._known, key=lambda file: _common(self._known[file], wanted), default=None)
        if best is None:
            return None
        ids = self._known[best]
        common = _common(ids, wanted)
        if common < known + max(LEAST_GAIN, len(ids) // LEAST_SHARE):
            return None
        text = self._read(best)
        if text is None:
            del self._known[best]
            return None
        text.shorten(common)  # perhaps to nothing, as the state of a recurrent layer
        return text if len(text.ids) > known else None

    def give(self, text: CachedText) -> None:
        """Write a text, unless a file holds it already; those that it goes on from are removed."""
        ids = np.array(text.ids, np.int32)
        if len(ids) < LEAST_GAIN or text.base or int(text.layers[0].offset) != len(ids):
            return
        for file, other in self._known.items():
            if _common(other, ids) == len(ids):
                self._touch(file)
                return
        caches = self._model.stored_cache(text.layers)
        if any(getattr(mlx_lm_caches, type(one).__name__, None) is not type(one) for one in caches):
            return
        arrays: dict[str, NDArray[Any]] = {IDS: ids}
        form = json.dumps([[type(one).__name__, _form(_state(one), arrays)] for one in caches])
        file = self._folder / f"{sha256(ids.tobytes()).hexdigest()[:32]}{SUFFIX}"
        older = [path for path, other in self._known.items() if _common(other, ids) == len(other)]
        self._known[file] = ids
        for path in older:
            self._known.pop(path, None)
        while len(self._pending) >= MOST_PENDING:
            self._pending.popleft().result()
        write = partial(self._write, file, arrays, form, older)
        self._pending.append(self._writer.submit(write))

    def flush(self) -> None:
        """Wait until everything is on the disk."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Write what is on its way; after that nothing more may come."""
        self.flush()
        self._writer.shutdown()

    # ── Files ───────────────────────────────────────────────────────────────────────────────────

    def _write(self, file: Path, arrays: Arrays, form: str, older: Sequence[Path]) -> None:
        metadata = {"key": self._key, "form": form, "checksum": _checksum(self._key, form, arrays)}
        try:
            if not self._make_room(sum(array.nbytes for array in arrays.values())):
                return
            with written_aside(file) as unfinished:
                save_file(dict(arrays), unfinished, metadata)
                unfinished.chmod(0o600)
            for path in older:
                path.unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            why = first_line(error).partition(" at path ")[0]  # of a file that is new each time
            self._report(f"a text cannot be written to {self._root}: {why}")

    def _read(self, file: Path) -> CachedText | None:
        """Return the text in a file, or None if it is not what was written."""
        self.flush()  # it may be on its way
        try:
            with safe_open(file, "numpy") as content:
                metadata = content.metadata() or {}
                arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
            form = metadata.get("form", "")
            if metadata.get("key") != self._key:
                raise ValueError("it is another model's")
            if metadata.get("checksum") != _checksum(self._key, form, arrays):
                raise ValueError("its checksum is wrong")
            caches = [
                getattr(mlx_lm_caches, name).from_state(_restored(state, arrays))
                for name, state in json.loads(form)
            ]
            text = CachedText(self._model.restored_cache(caches, len(arrays[IDS])))
            text.base, text.ids = 0, arrays[IDS].tolist()
            mx.eval(text.arrays())
        except FileNotFoundError:  # it had to make room
            return None
        except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
            self._report(f"{file} is ignored: {first_line(error)}")
            return None
        self._touch(file)
        return text

    def _ids_of(self, file: Path) -> Ids | None:
        try:
            with safe_open(file, "numpy") as content:
                if (content.metadata() or {}).get("key") != self._key:
                    raise ValueError("it is another model's")
                ids: Ids = content.get_tensor(IDS)
            if ids.dtype != np.int32 or ids.ndim != 1:
                raise ValueError("it holds no text")
        except (OSError, SafetensorError, ValueError) as error:
            self._report(f"{file} is ignored: {first_line(error)}")
            return None
        return ids

    def _make_room(self, size: int) -> bool:
        """Remove the files of all models that were used longest ago; tell whether one fits."""
        files = [(path.stat(), path) for path in self._root.glob(f"*/*{SUFFIX}")]
        files.sort(key=lambda found: found[0].st_mtime)
        taken = sum(found.st_size for found, _ in files)
        for found, path in files:
            if taken + size <= self._most:
                break
            path.unlink(missing_ok=True)
            taken -= found.st_size
        return taken + size <= self._most

    def _tidy(self) -> None:
        for path in self._folder.glob(".*"):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink(missing_ok=True)

    def _touch(self, file: Path) -> None:
        with suppress(OSError):  # it is still on its way, or the folder is read-only
            os.utime(file)

    def _report(self, message: str) -> None:
        if message not in self._reported:
            self._reported.add(message)
            _log.warning("the cache on the disk: %s", message)


def _common(ids: Ids, prompt: Ids) -> int:
    length = min(len(ids), len(prompt))
    different = np.flatnonzero(ids[:length] != prompt[:length])
    return int(different[0]) if different.size else length


def _checksum(key: str, form: str, arrays: Arrays) -> str:
    found = hashlib.sha256(f"{key} {form}".encode())
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].shape} {arrays[name].dtype}".encode())
        found.update(np.ascontiguousarray(arrays[name]).data)
    return found.hexdigest()


def _state(cache: Any) -> Any:
    """Return what mlx-lm takes a cache for, without the room for more tokens."""
    if type(cache) is mlx_lm_caches.KVCache and cache.offset:
        keys, values = (array[..., : cache.offset, :] for array in (cache.keys, cache.values))
        return keys, values, cache.offset
    return cache.state


def _form(state: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the state of a cache as JSON, and add its arrays, as bytes, to those of the text."""
    if isinstance(state, mx.array):
        name = str(len(arrays))
        stored = mx.contiguous(state).view(mx.uint8)
        mx.eval(stored)
        arrays[name] = np.array(stored, copy=False)
        return {"array": name, "dtype": str(state.dtype).removeprefix("mlx.core.")}
    if isinstance(state, list | tuple):
        return [_form(part, arrays) for part in state]
    return state


def _restored(form: Any, arrays: Arrays) -> Any:
    if isinstance(form, dict):
        return mx.array(arrays[form["array"]]).view(getattr(mx, form["dtype"]))
    if isinstance(form, list):
        return [_restored(part, arrays) for part in form]
    return form
