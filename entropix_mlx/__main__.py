"""``python -m entropix_mlx`` is `entropix`."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line of this process and return its exit code.

    While modules are imported, and after the work, Ctrl-C ends the process at once: an exception
    there would end with a traceback.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return _run()  # whoever started this wants interrupts to be ignored
    signal.signal(signal.SIGINT, _leave)
    try:
        from .cli import main as run

        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
        signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:  # between the handlers
        code = INTERRUPTED
    return code


def _run() -> int:
    from .cli import main as run

    return run()


def _leave(*_: object) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
