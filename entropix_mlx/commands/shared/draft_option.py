"""The options of a draft model, under the names that mlx-lm's users know."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...engine.speculation.proposer import checked_length
from ...errors import SettingsError
from . import arg_types, output

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...engine.speculation.draft_model import DraftModel
    from ...models.base import LanguageModel


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add(
        "--draft-model",
        type=arg_types.given,
        metavar="M",
        help="a smaller model with the same tokenizer, which guesses what comes next; the text is"
        " the same",
    )
    add(
        "--num-draft-tokens",
        type=arg_types.positive,
        metavar="N",
        help="tokens that it guesses at once (default: 3)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Check the number of tokens to guess, before anything is loaded.

    Raises:
        SettingsError: there is no model that guesses them, or they are too many.
    """
    if arguments.num_draft_tokens is None:
        return
    checked_length(arguments.num_draft_tokens)
    if arguments.draft_model is None:
        raise SettingsError("--num-draft-tokens is for a draft model: name it with --draft-model")


def load_draft(
    arguments: argparse.Namespace, model: LanguageModel, tokenizer: TokenizerWrapper
) -> DraftModel | None:
    """Load the draft model that the options name, if they do.

    Raises:
        EntropixError: it cannot be loaded, or cannot guess for the model.
    """
    if arguments.draft_model is None:
        return None
    from ...checkpoints.loading import load
    from ...engine.speculation.draft_model import DRAFT_TOKENS, DraftModel

    if arguments.verbose:
        output.tell(f"loading the draft model {output.shortened(arguments.draft_model)} …")
    tokens = arguments.num_draft_tokens or DRAFT_TOKENS
    draft = DraftModel(*load(arguments.draft_model, dequantize=arguments.dequantize), tokens)
    draft.check(model, tokenizer)
    return draft
