"""Write the Homebrew formula of a release from its lock.

The lock is what pip would install with the release's wheel (`pip install --dry-run --report`):
every wheel with its address and its SHA-256. `make formula` makes both; only those that Python 3.13
made on a Mac are of use.
"""

import json
import runpy
import sys
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
FORMULA = """\
class EntropixMlx < Formula
  desc "Entropy-aware decoding on Apple Silicon, with every token's uncertainty in view"
  homepage "{repository}"
  url "{repository}/releases/download/v{version}/{wheel}", using: :nounzip
  sha256 "{sha256}"
  license "MIT"

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@3.13"

{resources}
  def install
    system "python3.13", "-m", "venv", libexec
    pip = [libexec/"bin/python", "-m", "pip", "install", "--no-deps", "--no-index"]
    resources.each {{ |wheel| wheel.stage {{ system(*pip, *Dir["*.whl"]) }} }}
    system(*pip, *Dir["*.whl"])
    bin.install_symlink libexec/"bin/entropix"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/entropix --version")
  end
end
"""
RESOURCE = """\
  resource "{name}" do
    url "{url}", using: :nounzip
    sha256 "{sha256}"
  end
"""


def formula(lock: dict) -> str:
    """Return the formula in Ruby.

    Raises:
        ValueError: pip would build a package from its source.
    """
    own = runpy.run_path(str(ROOT / "entropix_mlx" / "_version.py"))
    resources, wheel = [], {}
    for package in sorted(lock["install"], key=lambda package: package["metadata"]["name"]):
        name, found = package["metadata"]["name"], package["download_info"]
        file = {"url": found["url"], "sha256": found["archive_info"]["hashes"]["sha256"]}
        if not found["url"].endswith(".whl"):
            raise ValueError(f"{name} has no wheel for this platform: {found['url']}")
        if name.replace("-", "_") == "entropix_mlx":
            wheel = {"wheel": Path(urlsplit(found["url"]).path).name, "sha256": file["sha256"]}
        else:
            resources.append(RESOURCE.format(name=name, **file))
    return FORMULA.format(
        repository=own["REPOSITORY"],
        version=own["__version__"],
        resources="\n".join(resources),
        **wheel,
    )


if __name__ == "__main__":
    print(formula(json.load(sys.stdin)), end="")
