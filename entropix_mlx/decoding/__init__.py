"""From a prompt to steps."""
