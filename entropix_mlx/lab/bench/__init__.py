"""Speed and memory, measured against mlx-lm."""
