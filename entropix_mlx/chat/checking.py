"""What a session refuses before it changes anything."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.interventions.thinking import Thinking
from ..engine.sampler_state import check_biased
from ..errors import SessionError, whole_number
from ..models.base import LanguageModel
from ..settings import ResolvedSettings, Settings
from .conversation import Answer


def checked_settings(
    settings: Settings, model: LanguageModel, tokenizer: TokenizerWrapper
) -> ResolvedSettings:
    """Return the settings of the next answer.

    The runner would raise the same, but only when the first step is read.

    Raises:
        SamplerError, ProfileError: the settings do not fit the model.
    """
    config = model.config
    resolved = settings.resolved(config)
    sampler = resolved.sampler
    Thinking(sampler.think, tokenizer, config.vocab_size)  # its constructor checks the text
    check_biased(sampler, config.vocab_size)
    return resolved


def checked_tokens(token: int | Sequence[int], vocab_size: int) -> list[int]:
    """Return the tokens that are to stand in an answer, of which there may be one.

    Raises:
        SessionError: there is none, or the model has no such token.
    """
    given = token if isinstance(token, Sequence) else [token]
    tokens = [whole_number("token", each) for each in given]
    if not tokens:
        raise SessionError("there is no token to put there: give at least one")
    if beyond := [each for each in tokens if not 0 <= each < vocab_size]:
        raise SessionError(f"there is no token {beyond[0]} in this model's vocabulary")
    return tokens


def check_writer(answer: Answer, fingerprint: str) -> None:
    """Check that a model wrote an answer, or that nobody knows who did.

    Raises:
        SessionError: another model wrote it.
    """
    if answer.model not in (None, fingerprint):
        raise SessionError(
            f"another model wrote that answer ({answer.model}), and this one's tokens mean"
            " something else: answer the question again first"
        )
