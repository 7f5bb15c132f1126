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
    [
        "entropix_mlx",
        "entropix_mlx.step",
        "entropix_mlx.errors",
        "entropix_mlx.limits",
        "entropix_mlx.models.config",
        "entropix_mlx.profiles.profile",
        "entropix_mlx.settings",
        "entropix_mlx.policies.registry",
        "entropix_mlx.chat.conversation",
        "entropix_mlx.profiles.tree",
        "entropix_mlx.traces.trace",
        "entropix_mlx.traces.report",
        "entropix_mlx.summary",
        "entropix_mlx.palette",
        "entropix_mlx.cli",
        "entropix_mlx.__main__",
        "tui.viewer",
        "tui.app",
    ],
)
def test_what_reads_steps_does_not_wait_for_mlx(module):
    assert not {"mlx.core", "mlx_lm", "transformers"} & modules_after(f"import {module}")


def test_the_core_knows_no_front_end():
    loaded = modules_after("from entropix_mlx import *; import entropix_mlx.conversion.convert")
    assert not {"textual", "tui", "entropix_mlx.cli"} & loaded
    assert "entropix_mlx.decoding.engine" in loaded


def test_the_command_line_opens_a_screen_only_when_asked():
    assert not {"textual", "tui"} & modules_after("import entropix_mlx.cli")


def test_public_names_are_what_they_say():
    code = "import entropix_mlx as e; print(all(callable(f) for f in (e.generate, e.load)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
