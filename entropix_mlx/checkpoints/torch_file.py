"""Reading tensors out of a PyTorch file without unpickling it.

Such a file is a zip archive. Each storage, an array of numbers, is an entry; one more entry is a
pickle, which says for each tensor in which storage it lies, where there, and of what shape. A
pickle is a program for a stack machine. This module has a machine of its own that knows the few
instructions which describe tensors and refuses all others, so nothing of the file is executed.
"""

from __future__ import annotations

import math
import os
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from .. import limits
from ..errors import WeightsError
from .checkpoint import Cut, Tensor, TensorLocation, from_numpy

_STORAGES = {
    "torch FloatStorage": (mx.float32, np.float32),
    "torch HalfStorage": (mx.float16, np.float16),
    "torch BFloat16Storage": (mx.bfloat16, np.uint16),
}
_ZIP_ERRORS = (OSError, EOFError, RuntimeError, struct.error, zipfile.BadZipFile)
"""What `zipfile` raises of a damaged archive."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""What precedes an entry: a mark, and the lengths of the name and the extra field that follow."""


class _Name(str):
    """A function or class that unpickling would import; here it is only its name."""

    __slots__ = ()


class _Storage(NamedTuple):
    kind: _Name
    key: str
    numbers: int


class _PickledTensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]


class _UnreadableError(Exception):
    """What is wrong with the file, as a clause."""


def open_torch_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a ``.pth`` file that holds a dictionary of them, none of them read yet.

    Raises:
        WeightsError: the file is damaged, or holds anything but tensors.
    """
    try:
        limits.check_regular(path.stat(), path)
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive)
            (pickle,) = (name for name in entries if name.endswith("/data.pkl"))
            if entries[pickle].file_size > limits.PICKLE_BYTES:
                raise _UnreadableError("its description of tensors is too large")
            folder = pickle.removesuffix("data.pkl")
            order = f"{folder}byteorder"  # newer files say it; older ones are little-endian
            if order in entries and archive.read(order) != b"little":
                raise _UnreadableError("its numbers are not little-endian")
            described = _describe(archive.read(pickle))
        return {
            name: _tensor(path, entries[f"{folder}data/{part.storage.key}"], name, part)
            for name, part in described.items()
        }
    except (*_ZIP_ERRORS, LookupError, TypeError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read as a PyTorch file: {error!r}") from error
    except _UnreadableError as error:
        raise WeightsError(f"{path}: cannot be read as a PyTorch file: {error}") from error


def _entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the entries of an archive by their names; none of them may expand when it is read."""
    listed = archive.infolist()
    if len(listed) > limits.ZIP_ENTRIES:
        raise _UnreadableError(f"it has {len(listed)} parts")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in listed):
        raise _UnreadableError("it is compressed, as PyTorch's files never are")
    return {entry.filename: entry for entry in listed}


def _tensor(path: Path, entry: zipfile.ZipInfo, name: str, part: _PickledTensor) -> Tensor:
    if part.storage.kind not in _STORAGES:
        raise _UnreadableError(f"the tensor {name} has the type of {part.storage.kind}")
    dtype, stored = _STORAGES[part.storage.kind]
    nbytes = part.storage.numbers * dtype.size
    if entry.file_size != nbytes or nbytes > path.stat().st_size:
        raise _UnreadableError(f"the numbers of the tensor {name} are not {nbytes} bytes")
    if part.offset + math.prod(part.shape) > part.storage.numbers:
        raise _UnreadableError(f"the tensor {name} reaches beyond its storage")
    read = partial(_read, path, entry, part, stored, dtype)
    # An archive's numbers are checked as a whole, so all of them pass by, though not all are kept.
    location = TensorLocation(path, entry.header_offset, nbytes)
    return Tensor(part.shape, dtype, path, read, lambda: (location,))


def _read(
    path: Path,
    entry: zipfile.ZipInfo,
    part: _PickledTensor,
    stored: Any,
    dtype: mx.Dtype,
    cut: Cut | None = None,
) -> mx.array:
    # Not by `zipfile`: it would read the list of all entries again for each tensor.
    try:
        with path.open("rb") as file:
            file.seek(entry.header_offset)
            mark, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            file.seek(name_length + extra_length, os.SEEK_CUR)
            content = file.read(entry.file_size)
        if mark != b"PK\3\4" or zlib.crc32(content) != entry.CRC:
            raise ValueError(f"the numbers in {entry.filename} are damaged")
        numbers = np.frombuffer(content, stored)
        own = numbers[part.offset : part.offset + math.prod(part.shape)].reshape(part.shape)
        if cut is not None:
            own = own[cut.of(part.shape)]
    except (OSError, struct.error, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}. Download it again.") from error
    return from_numpy(own, dtype)


def _describe(pickle: bytes) -> dict[str, _PickledTensor]:
    machine = _PickleMachine()
    for instruction, argument, _ in pickletools.genops(pickle):
        machine.step(instruction.name, argument)
    described = machine.stack.pop()
    if not isinstance(described, dict) or not described:
        raise _UnreadableError("it holds no dictionary of tensors")
    for name, part in described.items():
        if not isinstance(part, _PickledTensor):
            raise _UnreadableError(f"{name} in it is no tensor")
    return described


class _PickleMachine:
    """A pickle machine that can only build texts, numbers, lists, dictionaries and tensors."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif name not in _IGNORED:
            raise _UnreadableError(f"its pickle wants to do more than describe tensors ({name})")

    def since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def last(self, count: int) -> list[Any]:
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def drop(self) -> None:
        self.stack.pop()

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise _UnreadableError("its pickle puts items into what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise _UnreadableError("its pickle has a key that is no text")
            target[key] = value

    def load_storage(self) -> None:
        kind_of_thing, kind, key, _place, numbers = self.stack.pop()
        if kind_of_thing != "storage" or not isinstance(kind, _Name) or not _is_count(numbers):
            raise _UnreadableError("its pickle refers to what is no storage")
        # The name of a storage becomes part of messages. A nested tuple in its place can grow
        # exponentially when it is printed: nothing of the pickle is formatted but texts.
        if type(key) is not str:
            raise _UnreadableError("its pickle has a storage whose name is no text")
        self.stack.append(_Storage(kind, key, numbers))

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Name) or function not in _FUNCTIONS:
            called = function if isinstance(function, _Name) else "what it does not name"
            raise _UnreadableError(f"its pickle wants to call {called}")
        self.stack.append(_FUNCTIONS[function](*arguments))


def _rebuild(storage: Any, offset: Any, shape: Any, stride: Any, *_rest: Any) -> _PickledTensor:
    if not isinstance(storage, _Storage) or not _is_count(offset):
        raise _UnreadableError("its pickle has a tensor without a storage")
    # The number of dimensions comes first: products of a million of them would take minutes.
    if not isinstance(shape, tuple) or not 1 <= len(shape) <= limits.DIMENSIONS:
        raise _UnreadableError("its pickle has a tensor without a shape, or of too many dimensions")
    if not all(map(_is_count, shape)):
        raise _UnreadableError("its pickle has a tensor whose shape is not of whole numbers")
    contiguous = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if stride != contiguous:
        raise _UnreadableError("its pickle has a tensor whose numbers do not lie in order")
    return _PickledTensor(storage, offset, shape)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


_IGNORED = {"PROTO", "FRAME", "STOP"}
_LITERALS = {
    *("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "NONE": lambda: None,
}
_ACTIONS: dict[str, Callable[[_PickleMachine, Any], None]] = {
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.stack.append(tuple(machine.last(1))),
    "TUPLE2": lambda machine, _: machine.stack.append(tuple(machine.last(2))),
    "TUPLE3": lambda machine, _: machine.stack.append(tuple(machine.last(3))),
    "GLOBAL": lambda machine, argument: machine.stack.append(_Name(argument)),
    "BINPUT": lambda machine, argument: machine.memo.update({argument: machine.stack[-1]}),
    "LONG_BINPUT": lambda machine, argument: machine.memo.update({argument: machine.stack[-1]}),
    "BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
    "LONG_BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
    "SETITEM": lambda machine, _: machine.set_items(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "BINPERSID": lambda machine, _: machine.load_storage(),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.drop(),  # a dictionary's attributes: versions
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "collections OrderedDict": lambda: {},
    "torch._utils _rebuild_tensor_v2": _rebuild,
    "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
}
