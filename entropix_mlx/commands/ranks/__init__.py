"""Commands under `mlx.launch`: one process per rank."""
