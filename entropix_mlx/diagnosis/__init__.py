"""What this machine is, what is slow on it, what keeps the program from working, and what to do."""
