"""What the README says that a command prints is what it prints."""

import re
import shlex
from pathlib import Path

import pytest

from entropix_mlx import cli

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("demo_file")]

README = Path(__file__).parents[2] / "README.md"
TIMES = re.compile(r"[\d.]+(?= s;| tokens/s)")


def test_the_first_answer_in_the_readme(capsys):
    block = re.search(r"```console\n\$ entropix (.*)\n((?:.*\n)*?)```", README.read_text("utf-8"))
    assert cli.main(shlex.split(block[1])) == 0
    out, err = capsys.readouterr()
    first, rest = err.split("\n", 1)  # one line is told before the answer
    assert TIMES.sub("_", f"{first}\n{out}{rest}") == TIMES.sub("_", block[2])
