"""Evaluation: questions with known answers, many ways of answering them, and what that shows."""
