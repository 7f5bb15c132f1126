"""Where a question is typed, and the lines around it."""
