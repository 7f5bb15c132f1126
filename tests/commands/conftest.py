"""The command line in process, and a stand-in for a terminal."""

import io

import pytest

from entropix_mlx import cli


@pytest.fixture
def entropix(capsys):
    """Run a command line; return its exit code, stdout and stderr."""

    def entropix(*arguments):
        try:
            code = cli.main(list(map(str, arguments)))
        except SystemExit as stop:  # argparse's own refusals
            code = stop.code
        return code, *capsys.readouterr()

    return entropix


@pytest.fixture
def generate(entropix, tiny_folder):
    """Generate with a tiny model."""
    return lambda *arguments: entropix("generate", "--model", tiny_folder, *arguments)


class Terminal(io.StringIO):
    def isatty(self):
        return True
