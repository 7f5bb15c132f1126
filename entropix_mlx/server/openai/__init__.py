"""OpenAI's HTTP interface: requests, responses, errors."""
