"""What may be done in place of keeping the drawn token: thoughts, forks, retrieval."""
