"""MLX's device and its speed, found out in a process of its own: MLX may end one without a word."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..errors import DeviceError, first_line

SECONDS = 60
WIDTH = 512
"""Of the matrices that are multiplied: small enough for the slowest BLAS, 0.05 s."""
REPEATS = 3


@dataclass(frozen=True)
class DeviceFacts:
    """Where MLX computes."""

    kind: str
    """``gpu`` or ``cpu``."""
    name: str
    working_set: int | None
    """Bytes that a GPU should hold at most, if it says so."""
    blas: str
    """``reference`` computes prompts slowly; ``fast`` is any other; GPUs need none."""
    float32: float
    """Billions of operations a second in products of matrices."""
    half: float
    """The same of bfloat16."""


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
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"MLX did not answer within {SECONDS} s") from error
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise DeviceError(first_line(error)) from error
    said = done.stderr.strip().splitlines()
    raise DeviceError(said[-1] if said else f"the process ended with {done.returncode}")


def measure() -> DeviceFacts:
    """Use MLX in this process."""
    import mlx.core as mx

    from ..models.llama.weight_layout import blas_batches, on_cpu
    from ..models.memory import recommended_memory

    def product(dtype: mx.Dtype) -> float:
        matrix = mx.ones((WIDTH, WIDTH), dtype)
        mx.eval(matrix @ matrix)
        return 2 * WIDTH**3 / _fastest(lambda: mx.eval(matrix @ matrix)) / 1e9

    info = mx.device_info()
    return DeviceFacts(
        kind="cpu" if on_cpu() else "gpu",
        name=str(info.get("device_name", "")),
        working_set=recommended_memory(),
        blas="fast" if not on_cpu() or blas_batches() else "reference",
        float32=product(mx.float32),
        half=product(mx.bfloat16),
    )


def _fastest(run: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    print(json.dumps(asdict(measure())))
