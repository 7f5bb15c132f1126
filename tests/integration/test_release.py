"""What a release needs is there and agrees: version, changelog, citation, formula, make targets."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path

from entropix_mlx._version import REPOSITORY, __version__

ROOT = Path(__file__).parents[2]
LOCK = {
    "install": [
        {
            "metadata": {"name": name},
            "download_info": {
                "url": f"https://a/{name}-1-py3-none-any.whl",
                "archive_info": digest,
            },
        }
        for digest in [{"hashes": {"sha256": "00ff"}}]
        for name in ("mlx", "entropix_mlx", "numpy")
    ]
}


def script(name):
    return runpy.run_path(str(ROOT / "packaging" / f"{name}.py"))


def test_the_changelog_and_the_citation_have_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert script("changelog")["section"](changelog, __version__)
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"version: {__version__}\n" in citation
    assert f"repository-code: {REPOSITORY}\n" in citation


def test_the_formula_is_ruby_with_every_wheel_of_the_lock(tmp_path):
    text = script("formula")["formula"](LOCK)
    assert re.findall(r'resource "(\w+)" do', text) == ["mlx", "numpy"]
    assert f"{REPOSITORY}/releases/download/v{__version__}/entropix_mlx-1-py3-none-any.whl" in text
    if ruby := shutil.which("ruby"):
        (tmp_path / "formula.rb").write_text(text, "utf-8")
        subprocess.run([ruby, "-c", tmp_path / "formula.rb"], check=True)


def test_workflows_run_targets_that_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for line in re.findall(r"run: make (.*)", workflow.read_text("utf-8")):
            words = re.sub(r'"[^"]*"', "", line.partition(" > ")[0]).split()
            asked = {word for word in words if not word.startswith("--") and "=" not in word}
            assert asked <= set(targets), line
