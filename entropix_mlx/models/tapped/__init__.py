"""mlx-lm's models, with their attention measured."""
