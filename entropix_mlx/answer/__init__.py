"""The life of one answer: its rules, its interventions, its text. No MLX."""
