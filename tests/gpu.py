"""Prove that MLX computes on a GPU here; exit with 1 if it does not.

With the name of a type, only say so of that type: the virtual GPUs of hosted Macs lack bfloat16,
and MLX may end a process that asks for what is missing.
"""

import subprocess
import sys

import mlx.core as mx


def computes(dtype: mx.Dtype) -> bool:
    """Return whether the default device multiplies matrices of ones as it should."""
    product = mx.ones((64, 64), dtype) @ mx.ones((64, 64), dtype)
    return bool((product == 64).all().item())


if len(sys.argv) > 1:
    sys.exit(not computes(getattr(mx, sys.argv[1])))
print(f"default device: {mx.default_device()}; {mx.device_info()}")
for name in ("float32", "float16", "bfloat16"):
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, check=False)
    print(f"{name}: {'missing' if done.returncode else 'computes'}")
if mx.default_device() != mx.gpu or not computes(mx.float32):
    sys.exit("MLX does not compute on a GPU here")
