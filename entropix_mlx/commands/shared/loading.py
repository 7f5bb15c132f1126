"""Loading what an answer is made with: a model, perhaps downloaded first, notes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import get_ident, main_thread
from typing import TYPE_CHECKING

from ...chat.conversation import Conversation, Turn
from ...errors import ModelNotFoundError
from ...profiles.profile import AUTO
from ...samplers.registry import SAMPLERS
from ...settings import ResolvedSettings, Settings
from ...traces.trace import Header
from . import output
from .options import ModelOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...checkpoints.hub import ModelOffer
    from ...checkpoints.load import Extras
    from ...models.base import LanguageModel

QUANTIZED_FROM = 5000
"""Tokens in the KV cache from which on --kv-bits quantizes it."""
LONGEST_ANSWER = 100
STOPPED = "stopped; files that came whole are kept, and the same command goes on with the others"


def load_model(
    options: ModelOptions, *, chat: bool = False
) -> tuple[LanguageModel, TokenizerWrapper]:
    from ...checkpoints.load import load
    from ...models.ranks import launched

    output.info(f"loading {output.shortened(options.name)} …")
    model = None if options.model is None else located(options.model)
    return load(model, extras=extras(options), group=launched(), chat=chat)


def extras(options: ModelOptions) -> Extras:
    from ...checkpoints.load import Extras

    return Extras(
        adapter_path=None if options.adapter_path is None else str(options.adapter_path),
        chat_template_config=options.chat_template_config or {},
        kv_bits=options.kv_bits,
        quantized_kv_start=QUANTIZED_FROM,
    )


def resolve(settings: Settings, model: LanguageModel, many: bool = False) -> ResolvedSettings:
    """Return the settings of an answer; where no profile fits the model, say so, and learn it.

    Among many answers, it is said as soon as enough is learned, else by the next command.
    """
    resolved = settings.resolved(model.config)
    automatic = settings.profile == AUTO and SAMPLERS[settings.sampler].tree
    if automatic and not resolved.profile.calibration:
        from ...api.learned import OFFER, learn

        counts = learn(model, partial(output.info, OFFER) if many else None)
        output.info(
            OFFER
            if counts is not None and counts.ready
            else "no profile was calibrated for this model: using reference, until thresholds are"
            " learned from its tokens (entropix calibrate makes a profile now)"
        )
    return resolved


def trace_header(
    model: LanguageModel,
    name: str,
    resolved: ResolvedSettings,
    prompt_tokens: int,
    question: str | None,
    system_prompt: str | None = None,
    notes: Path | None = None,
) -> Header:
    """Return the header for the trace of an answer, or of a text that answers no question."""
    turns = [] if question is None else [Turn(question)]
    return Header(
        model=name,
        sampler=resolved.settings.sampler,
        profile=resolved.profile,
        seed=resolved.seed,
        messages=Conversation(system_prompt, turns).messages,
        context_length=model.config.max_position_embeddings,
        prompt_tokens=prompt_tokens,
        options=resolved.settings.options,
        notes=str(notes.absolute()) if notes else "",
    )


def with_model(model: ModelOptions) -> ModelOptions:
    """Return the options with a model: where none was named and none is here, a user at a terminal
    chooses one, which is downloaded.

    Raises:
        ModelNotFoundError: there is none, and nobody to ask, or nobody who wants one.
        DownloadError: it cannot be downloaded.
    """
    from ...checkpoints.hub import default_model
    from ...models.ranks import launched

    if model.model is not None or launched() is not None:
        return model
    try:
        return replace(model, model=default_model())
    except ModelNotFoundError:
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            raise
    return replace(model, model=download_model(_choose_offer().name))


def _choose_offer() -> ModelOffer:
    """Ask which of the models that fit into the memory to download."""
    from ...checkpoints.hub import fitting_offers
    from ...diagnosis.checks import memory

    offers = fitting_offers(memory())
    output.report("no model was named, and none is here to begin with; these can be had:")
    for number, offer in enumerate(offers, 1):
        size = f"{offer.nbytes / 1e9:.1f} GB, {offer.memory / 1e9:.0f} GB of memory"
        output.report(f"{number}  {offer.name}: {size}; {offer.purpose}")
    while True:
        output.report(f"which one? 1 to {len(offers)}, Enter for 1, q for none: ", end="")
        line = sys.stdin.readline(LONGEST_ANSWER)
        answer = line.strip() or "1"
        if line and answer in map(str, range(1, len(offers) + 1)):
            return offers[int(answer) - 1]
        if not line or answer == "q":
            raise ModelNotFoundError("no model was chosen: name one with --model, or choose later")


def download_model(name: str) -> str:
    """Download a model by its hub id, or the demo model, with a progress bar.

    Returns what `checkpoints.load.load` takes: the hub id, or a path.

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
    with _stopped_at_once():
        shown = output.progress("downloading", unit="B", unit_scale=True)
        return str(download_demo_model(shown))


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

    usual = signal.default_int_handler
    if signal.getsignal(signal.SIGINT) is not usual or main_thread().ident != get_ident():
        yield  # interrupts are ignored, or handled elsewhere
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
