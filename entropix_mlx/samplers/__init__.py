"""Ways of choosing a token: measure, decide, draw; on the device."""
