"""The conversation: questions, answers, tokens."""
