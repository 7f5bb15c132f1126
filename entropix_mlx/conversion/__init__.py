"""Writing a checkpoint as a new model folder, and comparing what both predict."""
