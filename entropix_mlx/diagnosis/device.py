"""MLX's device, found out in a process of its own: MLX may end one without a word."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass

from ..errors import DeviceError, first_line

SECONDS = 60


@dataclass(frozen=True)
class DeviceFacts:
    """Where MLX computes."""

    kind: str
    """``gpu`` or ``cpu``."""
    name: str
    working_set: int | None
    """Bytes that a GPU should hold at most, if it says so."""


def probe() -> DeviceFacts:
    """Start Python once more, and let it use MLX.

    Raises:
        DeviceError: MLX cannot be imported or used; the message is its own.
    """
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, errors="replace"
        )
        if done.returncode == 0:
            return DeviceFacts(**json.loads(done.stdout.splitlines()[-1]))
    except (OSError, ValueError, TypeError, IndexError, subprocess.TimeoutExpired) as error:
        raise DeviceError(first_line(error)) from error
    said = done.stderr.strip().splitlines()
    raise DeviceError(said[-1] if said else f"its process ended with {done.returncode}")


def use() -> DeviceFacts:
    """Compute something with MLX in this process."""
    import mlx.core as mx

    from ..models.device import on_cpu, recommended_memory

    matrix = mx.ones((8, 8))
    mx.eval(matrix @ matrix)
    return DeviceFacts(
        kind="cpu" if on_cpu() else "gpu",
        name=str(mx.device_info().get("device_name", "unnamed")),
        working_set=recommended_memory(),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(use())))
