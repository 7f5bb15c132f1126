"""The command line under `mlx.launch`: rank 0 runs the command, the others carry out its orders.

The others (`worker.py`) print nothing; rank 0 reports their errors. Whatever ends one rank ends all
of them, with one message, and with an exit code that is not 0.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..._version import installed_versions
from ...distributed.environment import RankEnvironment
from ...distributed.guard import guarded
from ...distributed.hub import Hub, Record
from ...errors import EntropixError, GroupError, LostRankError
from ..shared.output import BUG, INTERRUPTED, LOST, USAGE, leave

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...models.base import LanguageModel
    from .shares import Key

ALONE = ("convert", "bench")
"""Commands that look inside a model, or at the speed of one machine."""
GRACE_SECONDS = 1.5
"""The time in which rank 0 reports an error that all ranks have, before it reports a rank's."""
LOAD, ANSWER = "load", "answer"
"""Rank 0's first order."""
LOSS_SECONDS = 5.0
"""The time in which a lost rank shows on its connection after an error of MLX."""


class Coordinator:
    """The group, as the command on rank 0 sees it; see `shares.Ranks`."""

    def __init__(self, place: RankEnvironment) -> None:
        """Wait for the others.

        Raises:
            GroupError: one does not come, or does not fit.
        """
        self.place = place
        self._lock = threading.Lock()
        self._ended = False
        self._hub = Hub(place)
        signal.signal(signal.SIGINT, lambda *_: self._interrupted())
        with on_signal(signal.SIGTERM, self._give_up):
            try:
                self._hub.join(hello(), self._check)
            except GroupError as error:
                self._hub.broadcast({"do": "end", "code": _code_of(error)})
                raise
        self._hub.watch(self._lost)

    def load(self, **options: Any) -> tuple[LanguageModel, TokenizerWrapper]:
        """Load this rank's share of a model while the others load theirs.

        Args: as for `checkpoints.loading.load`, ready for JSON but for the extras.
        """
        from ...checkpoints.loading import load
        from ...distributed.group import Group

        extras = vars(options["extras"])
        self._hub.broadcast({"do": LOAD, "options": options | {"extras": extras}})
        list(self._received())  # they are ready
        self._hub.broadcast({"do": "meet"})
        lost = {line: self.place.lost(rank) for rank, line in self._hub.descriptors().items()}
        with guarded(lost, 2, LOST):
            group = Group.init(coordinated=True, send=self._hub.broadcast)
        return load(**options, group=group)

    @property
    def rank(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return self.place.size

    def begin_shares(self, done: Iterable[Key]) -> set[Key]:
        keys = set(done)
        self._hub.broadcast({"do": ANSWER, "done": sorted(keys)})
        return keys

    def check_same(self, fingerprint: str) -> None:
        """Compare the fingerprints of all ranks.

        Raises:
            GroupError: they differ.
        """
        for rank, record in self._received():
            if record["fingerprint"] != fingerprint:
                raise GroupError(
                    f"{self.place.name(rank)} would answer other prompts than rank 0, or by another"
                    " profile: copy the files of prompts, profiles and options to all machines"
                )
        self._hub.broadcast({"do": "generate"})

    def gather_answers(self, own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        records = list(own)
        for _ in range(1, self.size):
            while "complete" not in (record := self._next_result()[1]):
                records.append(record["answer"])
        return records

    def end_shares(self) -> None:
        self._hub.broadcast({"do": "end shares"})
        list(self._received())

    def _received(self) -> Iterator[tuple[int, Record]]:
        for _ in range(1, self.place.size):
            yield self._next_result()

    def _next_result(self) -> tuple[int, Record]:
        while True:
            rank, record = self._hub.results.get()
            if record is not None:
                return rank, record
            self.await_loss()  # another thread sees it, too, and ends this one

    def end(self, code: int) -> NoReturn:
        """End all ranks; MLX would wait for those that are gone."""
        with self._lock:
            self._ended = True
        self._leave_together(code)

    def await_loss(self) -> None:
        """Wait until a lost rank shows, which may be the reason of an error."""
        time.sleep(LOSS_SECONDS)

    def _fail(self, message: str, code: int) -> None:
        """End all ranks with a message, unless they end already."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        report_error(message)
        self._leave_together(code)

    def _leave_together(self, code: int) -> NoReturn:
        """End the others and this rank; MLX's messages about closed connections are dropped."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self._hub.end({"do": "end", "code": code})
        leave(code)

    def _lost(self, rank: int, error: str | None) -> None:
        if error is None:
            self._fail(self.place.lost(rank), LOST)
        else:
            time.sleep(GRACE_SECONDS)
            self._fail(f"{self.place.name(rank)}: {error}", USAGE)

    def _interrupted(self) -> None:
        self._fail("interrupted: all ranks were ended", INTERRUPTED)

    def _give_up(self) -> NoReturn:
        report_error(self._hub.missing())
        leave(LOST)

    def _check(self, rank: int, said: Mapping[str, Any], hello: Mapping[str, Any]) -> None:
        for package, version in hello["versions"].items():
            other = said.get("versions", {}).get(package)
            if other != version:
                raise GroupError(
                    f"{self.place.name(rank)} has {package} {other}, and rank 0 has {version}:"
                    " install the same versions on all machines"
                )
        if said.get("command") != hello["command"]:
            raise GroupError(
                f"{self.place.name(rank)} was started with other arguments than rank 0 (another"
                " --model?): start all ranks with one mlx.launch"
            )


def coordinate(place: RankEnvironment, run: Callable[[Coordinator], int]) -> NoReturn:
    """Run a command on rank 0, and end all ranks with its exit code."""
    try:
        coordinator = Coordinator(place)
    except EntropixError as error:
        report_error(str(error))
        leave(_code_of(error))
    try:
        code = run(coordinator)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else USAGE
    except Exception as error:
        if isinstance(error, RuntimeError):  # MLX's, of a rank that does not answer
            coordinator.await_loss()
        traceback.print_exc()
        code = BUG
    coordinator.end(code)


def hello() -> dict[str, Any]:
    command = hashlib.sha256(json.dumps(sys.argv[1:]).encode()).hexdigest()
    said = {"host": socket.gethostname(), "versions": installed_versions(), "command": command}
    return said | {"launch": os.getppid()}  # a launcher starts all ranks of a machine itself


def check_command(arguments: argparse.Namespace) -> None:
    """Refuse a command that cannot be shared.

    Raises:
        GroupError: it cannot.
    """
    subcommand = arguments.subcommand_name
    if subcommand in ALONE:
        raise GroupError(f"entropix {subcommand} works on one machine: start it without mlx.launch")
    if subcommand == "chat" and not arguments.plain:
        raise GroupError("mlx.launch gives the terminal UI no terminal: add --plain")
    if getattr(arguments, "draft_model", None):
        raise GroupError("a draft model works on one machine only: leave --draft-model out")
    if getattr(arguments, "notes", None):
        raise GroupError("notes work on one machine only: leave --notes out")
    if getattr(arguments, "models", None) or getattr(arguments, "cache_folder", None):
        raise GroupError(
            "several machines can serve only one model: leave --models and --cache-folder out"
        )
    if getattr(arguments, "prompt", None) == "-":
        raise GroupError(
            "mlx.launch never ends the input that it passes on: give --prompt a text, or --prompts"
            " a file"
        )


@contextlib.contextmanager
def on_signal(number: signal.Signals, do: Callable[[], None]) -> Iterator[None]:
    before = signal.signal(number, lambda *_: do())
    try:
        yield
    finally:
        signal.signal(number, before)


def report_error(message: str) -> None:
    from ..shared import output  # which imports what takes long; the ranks meet before

    output.report_error(message)


def _code_of(error: EntropixError) -> int:
    return LOST if isinstance(error, LostRankError) else USAGE
