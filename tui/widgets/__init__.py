"""One widget a file; each draws what it is given, and knows nothing of models."""
