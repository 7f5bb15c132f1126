"""The terminal UI: a chat that shows, word by word, how sure the model is."""
