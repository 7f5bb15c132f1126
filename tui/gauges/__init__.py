"""What is measured, drawn."""
