"""Backends of a front end: a model of this process, of a server, or a recording."""
