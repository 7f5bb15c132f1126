"""The connections between rank 0 and the others: orders, results, and who is still there.

Records are JSON, a line each. A connection that closes before its rank said that it is done means
that the rank is lost: each rank watches for that on a thread of its own, since the main one may be
inside a collective that will never come to its end.

There is no key: whoever reaches rank 0's port while the others are awaited could take the place of
one, as with MLX's own connections. Ranks belong on a network of their own.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

from ..errors import GroupError, LostRankError
from .environment import PATIENCE, RankEnvironment

HELLO_SECONDS = 2.0
"""Who connects and does not say within this who it is, is no rank."""
HELLO_BYTES = 2**16
"""The longest that a rank says of itself."""
STRANGERS = 64
"""Who are heard at once; of more, the first to come is dropped."""
OWN_SECONDS = 2.0
"""The time in which a rank of rank 0's own launch comes before one of another launch on its
machine: two may have been given the same port."""
RETRY_SECONDS = 0.05
END_SECONDS = 1.0
SILENT_SECONDS = 4
"""A machine that does not answer for so long is lost: its cable was pulled, or it has no power."""
LONGEST_LINE = 2**26
"""Bytes of a record: whoever sends more is no rank."""

RECEIVED_AT_ONCE = 2**16

Record = Mapping[str, Any]
OnEnd = Callable[[int, str | None], None]
"""Called, on a thread of its own, with a rank whose connection closed, and its error if it sent
one."""


class Line:
    """One connection to another rank."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _watch_for_silence(connection)
        self._socket = connection
        self._read = bytearray()
        self._lock = threading.Lock()

    def send(self, record: Record) -> None:
        """Send a record; where the other side is gone, reading will show it."""
        content = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(content)

    def read(self) -> dict[str, Any] | None:
        """Return the next record, waiting for it; None where there will be none."""
        scanned = 0
        while (end := self._read.find(b"\n", scanned)) < 0:
            scanned = len(self._read)
            if not self.receive(LONGEST_LINE):
                return None
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return _record(line)

    def receive(self, most: int) -> bool:
        """Wait for bytes; return whether there were some, and the line is not too long by now."""
        try:
            part = self._socket.recv(RECEIVED_AT_ONCE)
        except OSError:
            return False
        self._read += part
        return bool(part) and len(self._read) <= most

    @property
    def is_whole(self) -> bool:
        """Whether `read` has a record without waiting."""
        return b"\n" in self._read

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def wait_for_ever(self) -> None:
        self._socket.settimeout(None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes up whoever reads
        self._socket.close()


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _watch_for_silence(connection: socket.socket) -> None:
    """Have the system close a connection to a machine that does not answer any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))  # macOS's name
    options = {idle: 1, getattr(socket, "TCP_KEEPINTVL", None): 1}
    options |= {getattr(socket, "TCP_KEEPCNT", None): SILENT_SECONDS - 1}
    options |= {getattr(socket, "TCP_USER_TIMEOUT", None): SILENT_SECONDS * 1000}
    for option, value in options.items():
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


@dataclass
class _Caller:
    """Who connected before all ranks had come."""

    line: Line
    until: float
    """When it is dropped or, once it has said which rank it is, taken as that rank."""
    said: dict[str, Any] = field(default_factory=dict)


class Hub:
    """Rank 0's side: a line to every other rank."""

    def __init__(self, place: RankEnvironment) -> None:
        self._place = place
        self._lines: dict[int, Line] = {}
        self._threads: list[threading.Thread] = []
        self.results: Queue[tuple[int, Record | None]] = Queue()
        """What the others sent that is no error, with their ranks; None where one is gone."""
        try:
            self._server = socket.create_server(place.address, backlog=place.size + STRANGERS)
        except OSError as error:
            host, port = place.address
            raise GroupError(
                f"rank 0 cannot listen at {host}:{port}: {error.strerror or error}; give mlx.launch"
                " another --starting-port, or the addresses of the machines in their order"
            ) from error

    def join(self, hello: Record, check: Callable[[int, Record, Record], None]) -> None:
        """Wait for all ranks.

        Args:
            hello: what rank 0 says of itself.
            check: called with each rank, what it says, and what rank 0 says; raises where the two
                do not fit each other.

        Raises:
            LostRankError: a rank did not come, or is gone again.
            GroupError: one does not fit.
        """
        came: dict[int, Record] = {}
        callers: dict[int, _Caller] = {}
        until = time.monotonic() + self._place.patience
        while len(self._lines) < self._place.size - 1:
            by_number = {line.descriptor: rank for rank, line in self._lines.items()}
            watched = [self._server.fileno(), *by_number, *callers]
            first = min([until, *(caller.until for caller in callers.values())])
            ready, _, _ = select.select(watched, [], [], max(0.0, first - time.monotonic()))
            if time.monotonic() >= until:
                raise LostRankError(self.missing())
            for gone in filter(by_number.get, ready):  # nobody says more before all have come
                raise LostRankError(self._place.lost(by_number[gone]))
            for descriptor in callers.keys() & set(ready):
                if not self._hear(callers[descriptor], hello):
                    callers.pop(descriptor).line.close()  # a stranger
            if self._server.fileno() in ready:
                self._accept(callers)
            self._admit(callers, came)
        for caller in callers.values():
            caller.line.close()
        threading.Thread(target=self._refuse, daemon=True).start()
        for rank in sorted(came):
            check(rank, came[rank], hello)
        self.broadcast(hello)

    def _accept(self, callers: dict[int, _Caller]) -> None:
        if len(callers) == STRANGERS:
            callers.pop(next(iter(callers))).line.close()
        connection, _ = self._server.accept()
        line = Line(connection)
        callers[line.descriptor] = _Caller(line, time.monotonic() + HELLO_SECONDS)

    def _hear(self, caller: _Caller, hello: Record) -> bool:
        """Read what a caller sends; return whether it may be a rank."""
        if caller.said or not caller.line.receive(HELLO_BYTES):
            return False
        if not caller.line.is_whole:
            return True
        said = caller.line.read() or {}
        caller.said = said
        elsewhere = said.get("host") != hello.get("host")
        own = elsewhere or said.get("launch") == hello.get("launch")
        caller.until = time.monotonic() + (0 if own else OWN_SECONDS)
        rank = said.get("rank")
        fits = type(rank) is int and 0 < rank < self._place.size
        return fits and isinstance(said.get("versions"), dict)

    def _admit(self, callers: dict[int, _Caller], came: dict[int, Record]) -> None:
        """Take the callers whose time has come as ranks, and drop those that are none."""
        for descriptor, caller in list(callers.items()):
            if caller.until <= time.monotonic():
                rank = caller.said["rank"] if caller.said else 0
                if rank and rank not in self._lines:
                    self._lines[rank], came[rank] = caller.line, caller.said
                else:
                    caller.line.close()
                del callers[descriptor]

    def _refuse(self) -> None:
        """Keep the port, so that another launch cannot have it, and close who connects to it."""
        with contextlib.suppress(OSError):
            while True:
                self._server.accept()[0].close()

    def missing(self) -> str:
        missing = [rank for rank in range(1, self._place.size) if rank not in self._lines]
        return (
            f"{', '.join(map(self._place.name, missing))} did not come: see that the same program"
            f" is installed there and reaches rank 0 (it was waited for {self._place.patience:g} s;"
            f" {PATIENCE}=SECONDS waits longer)"
        )

    def watch(self, on_end: OnEnd) -> None:
        """Have each line read on a thread of its own, from now on."""
        for rank, line in self._lines.items():
            line.wait_for_ever()
            thread = threading.Thread(target=self._read, args=(rank, line, on_end), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self, rank: int, line: Line, on_end: OnEnd) -> None:
        while (record := line.read()) is not None:
            if "error" in record:
                on_end(rank, str(record["error"]))
            else:
                self.results.put((rank, record))
        self.results.put((rank, None))
        on_end(rank, None)

    def broadcast(self, record: Record) -> None:
        for line in self._lines.values():
            line.send(record)

    def descriptors(self) -> dict[int, int]:
        return {rank: line.descriptor for rank, line in self._lines.items()}

    def end(self, record: Record) -> None:
        """Send the last record to all, and wait a moment until they are gone.

        A connection that is closed before all that came over it was read may lose what was sent.
        """
        self.broadcast(record)
        until = time.monotonic() + END_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes up whoever accepts
        self._server.close()
        for line in self._lines.values():
            line.close()


class Spoke:
    """Another rank's side: a line to rank 0."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._orders: Queue[dict[str, Any] | None] = Queue()

    @classmethod
    def join(cls, place: RankEnvironment, hello: Record) -> Spoke:
        """Connect to rank 0, which may still be starting.

        Raises:
            LostRankError: it does not answer.
        """
        until = time.monotonic() + place.patience
        while True:
            try:
                connection = socket.create_connection(place.address, timeout=place.patience)
                break
            except OSError as error:
                if time.monotonic() > until:
                    host, port = place.address
                    reason = error.strerror or error
                    raise LostRankError(
                        f"{place.name(0)} does not answer at {host}:{port} ({reason}): see that it"
                        f" is started, and reached from here ({PATIENCE}=SECONDS waits longer than"
                        f" {place.patience:g} s)"
                    ) from error
                time.sleep(RETRY_SECONDS)
        connection.settimeout(None)  # rank 0 says whom it waits for in vain
        line = Line(connection)
        line.send({"rank": place.rank} | dict(hello))
        return cls(line)

    def begin(self) -> Record | None:
        """Wait until all ranks are there.

        Returns:
            What rank 0 says of itself, or the order to end; None where it is gone.
        """
        return self._line.read()

    def watch(self, on_end: Callable[[Record | None], None]) -> None:
        """Have orders read on a thread of its own; `on_end` is called there with the last one.

        That is the order to end, or None where rank 0 is gone without one.
        """

        self._line.wait_for_ever()

        def read() -> None:
            while (record := self._line.read()) is not None and record.get("do") != "end":
                self._orders.put(record)
            self._orders.put(None)
            on_end(record)

        threading.Thread(target=read, daemon=True).start()

    @property
    def descriptor(self) -> int:
        return self._line.descriptor

    def orders(self) -> Iterator[dict[str, Any]]:
        """Yield rank 0's orders, waiting for each, until it ends or is gone."""
        while (order := self._orders.get()) is not None:
            yield order

    def send(self, record: Record) -> None:
        self._line.send(record)

    def close(self) -> None:
        self._line.close()
