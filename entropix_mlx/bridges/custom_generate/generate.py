"""What transformers loads as ``custom_generate``; the package must be installed."""

from entropix_mlx.bridges.torch_generate import generate

__all__ = ["generate"]
