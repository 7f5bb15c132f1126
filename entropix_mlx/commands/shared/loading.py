"""Loading what an answer is made with: a model, perhaps downloaded first, notes."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ModelNotFoundError
from ...profiles.profile import AUTO
from ...samplers.registry import SAMPLERS
from ...settings import ResolvedSettings, Settings
from . import output
from .options import ModelOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...checkpoints.hub import ModelOffer
    from ...models.base import LanguageModel
    from ...notes import Notes

MOST_FAULTS = 5
"""Files of notes that are named at most, of those that could not be read."""


def load_model(options: ModelOptions) -> tuple[LanguageModel, TokenizerWrapper]:
    from ...checkpoints.load import Extras, load

    output.info(f"loading {output.shortened(options.name)} …")
    model = None if options.model is None else located(options.model)
    return load(model, extras=Extras(**options.extras), group=options.group)


def open_notes(folder: Path | None) -> Notes | None:
    if folder is None:
        return None
    from ...notes import Notes

    notes = Notes(folder)
    output.info(f"notes: passages {notes.passages:,}, files {notes.files:,}")
    for name, fault in list(notes.faults.items())[:MOST_FAULTS]:
        output.info(f"notes: {output.shortened(name)} is left out: {fault}")
    if (more := len(notes.faults) - MOST_FAULTS) > 0:
        output.info(f"notes: {more} more files are left out")
    return notes


def resolve(settings: Settings, model: LanguageModel) -> ResolvedSettings:
    """Return the settings of an answer; say so where no profile was calibrated for the model."""
    resolved = settings.resolved(model.config)
    automatic = settings.profile == AUTO and SAMPLERS[settings.sampler].tree
    if automatic and not resolved.profile.calibration:
        output.info(
            "no profile was calibrated for this model: using reference (entropix calibrate makes"
            " one that fits)"
        )
    return resolved


LONGEST_ANSWER = 100
STOPPED = "stopped; files that came whole are kept, and the same command goes on with the others"


def with_model(model: ModelOptions) -> ModelOptions:
    """Return the options with a model: where none was named and none is here, one to download.

    On a terminal the user chooses.

    Raises:
        ModelNotFoundError: there is none, and nobody to ask, or nobody who wants one.
        DownloadError: it cannot be downloaded.
    """
    if model.model is not None or model.group is not None:
        return model
    from ...checkpoints.hub import default_model

    try:
        return replace(model, model=default_model())
    except ModelNotFoundError:
        if not _can_ask():
            raise
    from ...checkpoints.hub import fitting_offers
    from ...models.device import machine_memory

    offers = fitting_offers(machine_memory())
    offer = _choose(offers)
    return replace(model, model=download_model(offer.name))


def _can_ask() -> bool:
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr.isatty())


def _choose(offers: Sequence[ModelOffer]) -> ModelOffer:
    output.report(
        "no model was named; entropix models lists those that are here, and these can be had:"
    )
    names = [offer.name.rpartition("/")[2] for offer in offers]
    width = max(map(len, names))
    for number, (name, offer) in enumerate(zip(names, offers, strict=True), 1):
        size = f"{offer.nbytes / 1e9:.1f} GB"
        output.report(f"{number}  {name:{width}}  {size}  {offer.purpose}")
    choices = [str(number) for number in range(1, len(offers) + 1)]
    while True:
        output.report(f"which one? 1 to {len(offers)}, Enter for 1, q for none: ", end="")
        answer = sys.stdin.readline(LONGEST_ANSWER)
        if answer.strip() in ("", *choices) and answer:
            return offers[int(answer.strip() or 1) - 1]
        if not answer or answer.strip() == "q":
            raise ModelNotFoundError("no model was chosen: name one with --model, or choose later")


def download_model(name: str) -> str:
    """Download a model by its hub id, or the demo model, with a progress bar.

    Returns what `loading.load` takes: the hub id, or a path.

    Raises:
        ModelNotFoundError, UnsupportedModelError, WeightsError: as for `hub.locate`.
        DownloadError: the demo model cannot be downloaded.
    """
    from ...checkpoints.demo import download_demo_model
    from ...checkpoints.hub import DEMO_NAME

    if name != DEMO_NAME:
        located(name)
        return name
    output.info("downloading the demo model (93 MB) …")
    shown = output.progress("downloading", unit="B", unit_scale=True, delay=0.1)
    with _stopped_at_once(), shown as on_progress:
        return str(download_demo_model(on_progress))


def located(name: str) -> Path:
    """Return where a model is, as `hub.locate` does; Ctrl-C ends a download at once."""
    from ...checkpoints.hub import locate

    with _stopped_at_once():
        return locate(name)


@contextmanager
def _stopped_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process: the hub's client would first wait for files that are on their
    way."""

    def stop(*_: object) -> None:
        output.report(f"\n{STOPPED}")
        output.leave(output.INTERRUPTED)

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield  # whoever started this ignores interrupts, or ends the process itself
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
