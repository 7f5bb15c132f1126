"""What happened in a generation, read and drawn without a model."""
