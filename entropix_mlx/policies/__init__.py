"""What is measured, decided and drawn at one position, on the device."""
