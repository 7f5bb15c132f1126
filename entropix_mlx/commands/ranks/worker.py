"""What the other ranks do under `mlx.launch`: what rank 0 tells (`ranks.py`), and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from ...distributed.environment import RankEnvironment
from ...distributed.guard import guarded
from ...distributed.hub import Spoke
from ...errors import EntropixError, GroupError
from ..shared.output import LOST
from .coordinator import (
    LOSS_SECONDS,
    WHOLE,
    hello,
    on_signal,
)


def follow(place: RankEnvironment) -> NoReturn:
    """Do on another rank what rank 0 tells, until it ends."""
    stderr = _silence()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets it, too

    told = place.lost(0) if place.rank == 1 else ""  # the others would say the same

    def give_up(message: str = told) -> None:
        if told:
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
    begun = spoke.begin()  # from here on, rank 0 tells what happens as long as it is there
    if begun is None or begun.get("do") == "end":
        ended(begun)
    spoke.watch(ended)
    try:
        _do(spoke, told, stderr)
    except Exception as error:
        if isinstance(error, RuntimeError):  # MLX's, of a rank that does not answer
            time.sleep(LOSS_SECONDS)
        known = isinstance(error, EntropixError)
        spoke.send({"error": str(error) if known else f"{type(error).__name__}: {error}"})
    time.sleep(2 * LOSS_SECONDS)  # rank 0 ends this
    os._exit(LOST)


def _do(spoke: Spoke, told: str, stderr: int) -> None:
    """Load what rank 0 loads, and follow its passes.

    Args:
        spoke: to rank 0.
        told: what to tell where rank 0 is lost before MLX has connected the ranks.
        stderr: where to tell it.
    """
    orders = spoke.orders()
    first = next(orders, None)
    if first is None:
        return
    from ...api.data_parallel import work
    from ...checkpoints.adapters import Extras
    from ...checkpoints.loading import load
    from ...distributed.group import Group
    from ...models.sharded.model import Share
    from ...models.sharded.worker import follow as follow_passes

    options = dict(first["options"])
    options["extras"] = Extras(**options["extras"])
    if first["do"] == WHOLE:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # rank 0 ends this
        model, tokenizer = load(**options)
        work(model, tokenizer, orders, spoke.send)
        return
    spoke.send({"ready": True})
    if next(orders, None) is None:
        return
    with guarded({spoke.descriptor: told}, stderr, LOST):
        group = Group.init(led=True)
    model, _ = load(**options, group=group)
    if isinstance(model, Share):
        follow_passes(model, orders)


def _silence() -> int:
    """Send what this process prints nowhere; return a descriptor of what was stderr."""
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return stderr
