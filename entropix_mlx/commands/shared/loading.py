"""Loading what an answer is made with: a model, a draft model, a folder of notes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

from ...profiles.selection import AUTO
from ...samplers.registry import SAMPLERS
from ...settings import ResolvedSettings, Settings
from . import output
from .first_model import located
from .options import ModelOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...engine.speculation.draft_model import DraftModel
    from ...models.base import LanguageModel
    from ...notes.notes import Notes

MOST_FAULTS = 5
"""Files of notes that are named at most, of those that could not be read."""


def load_model(options: ModelOptions) -> tuple[LanguageModel, TokenizerWrapper]:
    # Some million objects are made here that stay; looking for garbage among them takes 0.1 s.
    gc.disable()
    try:
        from ...api import chat_template
        from ...checkpoints.loading import Extras, load

        chat_template.start()  # meanwhile
        output.info(f"loading {output.shortened(options.name)} …")
        extras = Extras(**options.extras)
        if options.ranks is None or options.whole:
            model = None if options.model is None else located(options.model)
            return load(model, dequantize=options.dequantize, extras=extras)
        return options.ranks.load(model=options.model, dequantize=options.dequantize, extras=extras)
    finally:
        gc.enable()


def load_draft(
    options: ModelOptions, model: LanguageModel, tokenizer: TokenizerWrapper
) -> DraftModel | None:
    if options.draft_model is None:
        return None
    from ...checkpoints.loading import load
    from ...engine.speculation.draft_model import DRAFT_TOKENS, DraftModel

    output.info(f"loading the draft model {output.shortened(options.draft_model)} …")
    loaded = load(options.draft_model, dequantize=options.dequantize)
    draft = DraftModel(*loaded, options.draft_tokens or DRAFT_TOKENS)
    draft.check(model, tokenizer)
    return draft


def open_notes(folder: Path | None) -> Notes | None:
    if folder is None:
        return None
    from ...notes.notes import Notes

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
