"""``python -m entropix_mlx`` is `entropix`."""

import os
import signal
import sys

from .commands.exit_codes import INTERRUPTED


def main() -> int:
    """Run the command line of this process and return its exit code.

    While modules are imported, and after the work, Ctrl-C ends the process at once: an exception
    there would end with a traceback.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        from .cli import main as run  # whoever started this wants interrupts to be ignored

        return run()
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from .cli import main as run

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    except KeyboardInterrupt:  # between the handlers
        code = INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
