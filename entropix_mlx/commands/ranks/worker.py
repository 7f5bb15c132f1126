"""The other ranks under `mlx.launch`: they carry out the orders of rank 0 (`coordinator.py`)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ...distributed.environment import RankEnvironment
from ...distributed.guard import guarded
from ...distributed.hub import Record, Spoke
from ...errors import EntropixError, GroupError
from ..shared.output import LOST
from .coordinator import ANSWER, LOSS_SECONDS, hello, on_signal

if TYPE_CHECKING:
    from .shares import Key

Run = Callable[["Worker"], int]


def work(place: RankEnvironment, run: Run) -> NoReturn:
    """Carry out rank 0's orders on another rank, until it ends."""
    stderr = _silence()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets it, too

    lost = place.lost(0) if place.rank == 1 else ""  # the others would report the same

    def give_up(message: str = lost) -> None:
        if lost:
            with contextlib.suppress(OSError):
                os.write(stderr, f"entropix: {message}\n".encode())
        os._exit(LOST)

    def ended(order: Mapping[str, Any] | None) -> None:
        if order is None:
            give_up()
        else:
            os._exit(int(order["code"]))

    with on_signal(signal.SIGTERM, give_up):
        try:
            spoke = Spoke.join(place, hello())
        except GroupError as error:
            give_up(str(error))
    begun = spoke.begin()  # from here on, rank 0 reports errors as long as it is there
    if begun is None:
        give_up(f"{lost}; if another launch has this port, give mlx.launch another --starting-port")
    elif begun.get("do") == "end":
        ended(begun)
    spoke.watch(ended)
    try:
        _carry_out(spoke, place, run, lost, stderr)
    except Exception as error:
        if isinstance(error, RuntimeError):  # MLX's, of a rank that does not answer
            time.sleep(LOSS_SECONDS)
        known = isinstance(error, EntropixError)
        spoke.send({"error": str(error) if known else f"{type(error).__name__}: {error}"})
    time.sleep(2 * LOSS_SECONDS)  # rank 0 ends this
    os._exit(LOST)


def _carry_out(spoke: Spoke, place: RankEnvironment, run: Run, lost: str, stderr: int) -> None:
    """Compute what rank 0 computes, or answer a share of its prompts.

    Args:
        spoke: to rank 0.
        place: of this process.
        run: the command.
        lost: the message where rank 0 is lost before MLX has connected the ranks.
        stderr: where to write it.
    """
    orders = spoke.orders()
    first = next(orders, None)
    if first is None:
        return
    if first["do"] == ANSWER:
        run(Worker(place, spoke, orders, {(line, sample) for line, sample in first["done"]}))
        spoke.send({"ended": True})
        next(orders, None)  # rank 0 may have more to do
        return
    from ...checkpoints.loading import Extras, load
    from ...distributed.group import Group
    from ...models.sharded.model import Share
    from ...models.sharded.worker import carry_out

    options = first["options"] | {"extras": Extras(**first["options"]["extras"])}
    spoke.send({"ready": True})
    if next(orders, None) is None:
        return
    with guarded({spoke.descriptor: lost}, stderr, LOST):
        group = Group.init(coordinated=True)
    model, _ = load(**options, group=group)
    if isinstance(model, Share):
        carry_out(model, orders)


class Worker:
    """The group, as the command on another rank than 0 sees it; see `shares.Ranks`."""

    def __init__(
        self, place: RankEnvironment, spoke: Spoke, orders: Iterator[Record], done: set[Key]
    ) -> None:
        self.rank = place.rank
        self.size = place.size
        self._spoke = spoke
        self._orders = orders
        self._done = done

    def load(self, **_: Any) -> NoReturn:
        """Refuse: a model is shared by the orders of rank 0."""
        raise GroupError("only rank 0 loads a model that is split: start all ranks with mlx.launch")

    def begin_shares(self, done: Iterable[Key]) -> set[Key]:
        """Return the keys that rank 0 sent; this rank does not read the file of all answers."""
        return self._done

    def check_same(self, fingerprint: str) -> None:
        self._spoke.send({"fingerprint": fingerprint})
        next(self._orders, None)  # until rank 0 has compared all

    def gather_answers(self, own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        for record in own:
            self._spoke.send({"answer": record})
        self._spoke.send({"complete": True})
        return []

    def end_shares(self) -> None:
        next(self._orders, None)


def _silence() -> int:
    """Send what this process prints nowhere; return a descriptor of what was stderr."""
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return stderr
