"""What a session refuses before it changes anything."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.interventions.thinking import Thinking
from ..engine.sampler_state import check_biased
from ..errors import SessionError, whole_number
from ..models.base import LanguageModel
from ..samplers.base import Sampler
from ..settings import Settings
from .conversation import Answer


def checked_sampler(
    settings: Settings, model: LanguageModel, tokenizer: TokenizerWrapper
) -> Sampler:
    """Return the sampler of the next answer.

    `decode` would raise the same, but only when the first step is read.

    Raises:
        SamplerError, ProfileError: the settings do not fit the model.
    """
    config = model.config
    sampler = settings.resolved(config).build_sampler()
    Thinking(sampler.think, tokenizer, config.vocab_size)  # its constructor checks the text
    check_biased(sampler, config.vocab_size)
    return sampler


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
