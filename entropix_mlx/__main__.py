"""``python -m entropix_mlx`` is `entropix`."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from .commands.shared import output
from .commands.shared.output import INTERRUPTED, USAGE

if TYPE_CHECKING:
    from .commands.ranks.shares import Ranks


def main() -> int:
    """Run the command line of this process and return its exit code.

    While modules are imported, and after the work, Ctrl-C ends the process at once: an exception
    there would end with a traceback.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return _enter()  # whoever started this wants interrupts to be ignored
    signal.signal(signal.SIGINT, _leave)
    try:
        code = _enter()
        signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:  # between the handlers
        code = INTERRUPTED
    return code


def _enter() -> int:
    """Run the command line on whatever rank this is.

    The ranks meet before they import what takes long, so that one that is lost then is missed.
    """
    from .commands.ranks import coordinator, worker
    from .distributed.environment import of_environment
    from .errors import GroupError
    from .models import open_files

    open_files.keep_limit()
    output.prepare()
    try:
        place = of_environment()
    except GroupError as error:
        coordinator.report_error(str(error))
        return USAGE
    if place is None:
        return _run(None)
    if place.rank == 0:
        coordinator.coordinate(place, _run)
    return worker.work(place, _run_share)


def _run(ranks: Ranks | None) -> int:
    from .cli import main as run

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run(ranks=ranks)


def _run_share(ranks: Ranks) -> int:
    from .cli import perform

    return perform(ranks=ranks)


def _leave(*_: object) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
