"""The command line in process, and a stand-in for a terminal."""

import io

import pytest


@pytest.fixture
def generate(entropix, tiny_folder):
    """Generate with a tiny model."""
    return lambda *arguments: entropix("generate", "--model", tiny_folder, *arguments)


class Terminal(io.StringIO):
    def isatty(self):
        return True
