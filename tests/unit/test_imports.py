"""Who may import whom, checked in a fresh interpreter."""

import subprocess
import sys

import pytest


def modules_after(statement):
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    ["", ".step", ".errors", ".profile", ".summary", ".palette", ".report", ".cli", ".__main__"],
)
def test_what_reads_steps_does_not_wait_for_mlx(module):
    assert not {"mlx.core", "mlx_lm", "transformers"} & modules_after(
        f"import entropix_mlx{module}"
    )


def test_the_core_knows_no_front_end():
    loaded = modules_after("from entropix_mlx import *; import entropix_mlx.convert")
    assert not {"textual", "tui", "entropix_mlx.cli"} & loaded
    assert "entropix_mlx.engine" in loaded


def test_public_names_are_what_they_say():
    code = "import entropix_mlx as e; print(all(callable(f) for f in (e.generate, e.load)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
