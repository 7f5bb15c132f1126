"""What a front end talks to: a model of this process, of a server, or a recording."""
