"""The command line under `mlx.launch`: rank 0 runs the command, the others do what it tells.

The others (`led.py`) print nothing, read nothing and write nothing; what goes wrong there is told
by rank 0. Whatever ends one rank ends all of them, with one message, and with an exit code that is
not 0.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..._version import installed_versions
from ...distributed.environment import RankEnvironment
from ...distributed.guard import guarded
from ...distributed.hub import Hub
from ...errors import EntropixError, GroupError, LostRankError
from ..shared.output import BUG, INTERRUPTED, LOST, USAGE

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...answer.hooks import Retrieve
    from ...api.batch import Batch
    from ...api.data_parallel import Dealt, Workers
    from ...engine.speculation.draft_model import DraftModel
    from ...models.base import LanguageModel
    from ...settings import Settings

ALONE = ("convert", "tokens", "bench")
"""Commands that look inside a model, or at the speed of one machine."""
GRACE_SECONDS = 1.5
"""What went wrong on all ranks, rank 0 tells by itself; it gets so much time to do so."""
SHARE, WHOLE = "load a share", "load all"
"""Rank 0's first order."""
LOSS_SECONDS = 5.0
"""Within this a lost rank shows on its connection, after MLX complained about it."""


class Leader:
    """What the commands on rank 0 know of the other ranks."""

    def __init__(self, place: RankEnvironment) -> None:
        """Wait for the others.

        Raises:
            GroupError: one does not come, or does not fit.
        """
        self.place = place
        self.workers: Workers | None = None
        """The other ranks, where prompts are dealt to them."""
        self._lock = threading.Lock()
        self._ended = False
        self._bereft = threading.Event()
        self._hub = Hub(place)
        signal.signal(signal.SIGINT, lambda *_: self._interrupted())
        with on_signal(signal.SIGTERM, self._give_up):
            try:
                self._hub.join(hello(), self._check)
            except GroupError as error:
                self._hub.tell({"do": "end", "code": _code_of(error)})
                raise
        self._hub.watch(self._lost)

    def load(self, **options: Any) -> tuple[LanguageModel, TokenizerWrapper]:
        """Load this rank's share of a model while the others load theirs.

        Args: as for `checkpoints.loading.load`, ready for JSON but for the extras.
        """
        from ...checkpoints.loading import load
        from ...distributed.group import Group

        self._tell_load(SHARE, options)
        for _ in range(1, self.place.size):
            _, ready = self._hub.results.get()
            if ready is None:  # it is lost, which another thread sees, too, and ends this one
                self.await_loss()
        self._hub.tell({"do": "meet"})
        told = {line: self.place.lost(rank) for rank, line in self._hub.descriptors().items()}
        with guarded(told, 2, LOST):
            group = Group.init(led=True, tell=self._hub.tell)
        return load(**options, group=group)

    def load_whole(self, **options: Any) -> tuple[LanguageModel, TokenizerWrapper]:
        """Load a model while each of the others does, to deal prompts; a rank may be lost then.

        Args: as for `load`.
        """
        from ...api.data_parallel import Workers
        from ...checkpoints.loading import load

        # mlx.launch ends all ranks when one is gone; what it held is dealt again instead.
        signal.signal(signal.SIGTERM, lambda *_: self._terminated())
        self.workers = Workers(list(range(1, self.place.size)), self._hub.send, self._hub.results)
        self._tell_load(WHOLE, options)
        return load(**options)

    def _tell_load(self, what: str, options: Mapping[str, Any]) -> None:
        extras = vars(options["extras"])
        self._hub.tell({"do": what, "options": dict(options) | {"extras": extras}})

    def end(self, code: int) -> NoReturn:
        """End all ranks; MLX would wait for those that are gone."""
        with self._lock:
            self._ended = True
        self._leave_together(code)

    def await_loss(self) -> None:
        """Give a lost rank the time to show, after an error that it may be the reason of."""
        time.sleep(LOSS_SECONDS)

    def _fail(self, message: str, code: int) -> None:
        """End all ranks with a message, unless they end already."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        tell_error(message)
        self._leave_together(code)

    def _leave_together(self, code: int) -> NoReturn:
        """End the others and this rank; what MLX says of connections that close is not of use."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self._hub.end({"do": "end", "code": code})
        _leave(code)

    def _lost(self, rank: int, error: str | None) -> None:
        name = self.place.name(rank)
        self._bereft.set()
        if self.workers is not None:
            if not self._ended:
                why = f"{error}; its" if error else "it was lost; its"
                tell_error(f"{name}: {why} prompts are dealt to the others")
            self._hub.send(rank, {"do": "end", "code": USAGE if error else LOST})
        elif error is None:
            self._fail(self.place.lost(rank), LOST)
        else:
            time.sleep(GRACE_SECONDS)
            self._fail(f"{name}: {error}", USAGE)

    def _interrupted(self) -> None:
        self._fail("interrupted: all ranks were ended", INTERRUPTED)

    def _terminated(self) -> None:
        """End, unless it was the loss of another rank for which this one is to end."""
        if not self._bereft.wait(GRACE_SECONDS):
            self._fail("all ranks were ended", LOST)

    def _give_up(self) -> NoReturn:
        tell_error(self._hub.missing())
        _leave(LOST)

    def _check(self, rank: int, said: Mapping[str, Any], hello: Mapping[str, Any]) -> None:
        for package, version in hello["versions"].items():
            other = said.get("versions", {}).get(package)
            if other != version:
                raise GroupError(
                    f"{self.place.name(rank)} has {package} {other}, and rank 0 has {version}:"
                    " install the same versions on all machines"
                )


def lead(place: RankEnvironment, run: Callable[[Leader], int]) -> NoReturn:
    """Run a command on rank 0, and end all ranks with its exit code.

    Args:
        place: of this process.
        run: the command; returns its exit code.
    """
    try:
        leader = Leader(place)
    except EntropixError as error:
        tell_error(str(error))
        _leave(_code_of(error))
    try:
        code = run(leader)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else USAGE
    except Exception as error:
        if isinstance(error, RuntimeError):  # MLX's, of a rank that does not answer
            leader.await_loss()
        traceback.print_exc()
        code = BUG
    leader.end(code)


def generate_batch(
    leader: Leader | None,
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[Settings],
    batch: int,
    draft: DraftModel | None = None,
    retrieve: Sequence[Retrieve] | None = None,
) -> Batch | Dealt:
    """Return a batch of answers, dealt to ranks that hold the model where there are any.

    `check_command` sees to it that those neither guess with a draft model nor look things up.
    """
    from ...api.data_parallel import Dealt, steady_batch

    if leader is not None and leader.workers is not None:
        return Dealt(model, tokenizer, prompts, settings, leader.workers, batch)
    return steady_batch(model, tokenizer, prompts, settings, batch, draft, retrieve)


def hello() -> dict[str, Any]:
    """Return what a rank says of itself."""
    return {"host": socket.gethostname(), "versions": installed_versions()}


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
        raise GroupError("a draft model guesses on one machine only: leave --draft-model out")
    if getattr(arguments, "notes", None):
        raise GroupError("notes are looked up on one machine only: leave --notes out")
    if getattr(arguments, "prompt", None) == "-":
        told = "give --prompt a text, or --prompts a file"
        raise GroupError(f"mlx.launch never ends the input that it passes on: {told}")


@contextlib.contextmanager
def on_signal(number: signal.Signals, do: Callable[[], None]) -> Iterator[None]:
    """Do something else at a signal."""
    before = signal.signal(number, lambda *_: do())
    try:
        yield
    finally:
        signal.signal(number, before)


def tell_error(message: str) -> None:
    """Tell what went wrong on stderr."""
    from ..shared import output  # which imports what takes long; the ranks meet before

    output.report_error(message)


def _code_of(error: EntropixError) -> int:
    return LOST if isinstance(error, LostRankError) else USAGE


def _leave(code: int) -> NoReturn:
    """End this process at once, with everything printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
