"""What a program calls: generate, answer in batches, measure a text, build prompts."""
