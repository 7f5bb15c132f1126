"""The limit on open files stays what it was, or is raised, when mlx-lm is imported."""

import subprocess
import sys

import pytest

CODE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])))
from entropix_mlx.models import open_files
open_files.keep_limit()
import mlx_lm.utils
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [((512, 1024), (1024, 1024)), ((2500, 3000), (2500, 3000))],
)
def test_mlx_lm_does_not_lower_the_limit_on_open_files(before, after):
    command = [sys.executable, "-c", CODE, *map(str, before)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert tuple(map(int, done.stdout.split())) == after
