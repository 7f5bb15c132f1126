"""One model, or one list of questions, on several machines: MLX's distribution and our hub."""
