"""The samplers as a logits processor of transformers, for models that torch computes.

    from transformers import AutoModelForCausalLM, LogitsProcessorList
    from entropix_mlx.bridges.processor import SamplerProcessor

    processors = LogitsProcessorList([SamplerProcessor("min_p", min_p=0.1)])
    model.generate(**inputs, logits_processor=processors, do_sample=True, top_k=0)

Scores become the log probabilities that the sampler draws with, −∞ for tokens that it filters out;
transformers draws. So its own temperature, top-k and top-p must be off: its top-k is 50 by default.

A processor sees logits alone. Left out are the attention metrics, which count as 0, forks and
thoughts, in whose place the strategy's parameters are drawn with, and samplers that remember the
text. Each step copies the logits to the host and back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import NonFiniteLogitsError, SamplerError
from ..profiles.profile import REFERENCE, Profile
from ..samplers.distribution import drawn_probabilities
from ..samplers.draw import uniforms
from ..samplers.position import sample
from ..samplers.registry import make_sampler


class SamplerProcessor:
    """A callable that transformers takes as a `LogitsProcessor`."""

    def __init__(
        self,
        name: str = "entropix",
        profile: str | Path | Profile = REFERENCE,
        *,
        seed: int = 0,
        **given: Any,
    ) -> None:
        """Choose a sampler.

        Args:
            name: of a sampler without memory, one of `SAMPLERS`.
            profile: thresholds, coefficients and options: a profile, its name or its file.
            seed: of what a sampler leaves to chance before it draws, such as XTC.
            **given: sampling parameters, such as ``temperature=0.5``.

        Raises:
            SamplerError: no such sampler, a parameter that it does not take, or one with a memory.
            ProfileError: no such profile, or a bad one.
        """
        self._sampler = make_sampler(name, profile, given)
        self._seed = seed
        if self._sampler.remembered is not None:
            raise SamplerError(
                f"{name} with these parameters remembers the text, and a processor of transformers"
                " cannot: take another sampler, and the penalties of transformers"
            )

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return the log probabilities of the draw, shaped as the scores `(rows, vocab)`.

        Raises:
            NonFiniteLogitsError: a row holds NaN or +∞, or nothing but −∞.
        """
        import torch

        logits = scores.detach().float().cpu().numpy()
        if not np.isfinite(logits.max(axis=-1)).all():
            raise NonFiniteLogitsError("the scores hold NaN or infinity: nothing can be drawn")
        rows, at, draws = len(logits), input_ids.shape[1], self._sampler.draws
        random = mx.array([uniforms(self._seed + row, at, draws) for row in range(rows)])
        unknown = mx.zeros((rows, 1, 1))  # attention is not known here: it counts as 0
        sampled = sample(self._sampler, mx.array(logits), [[unknown]], random)
        with np.errstate(divide="ignore"):
            found = np.log(drawn_probabilities(sampled, self._sampler.drawing))
        return torch.from_numpy(found).to(scores)
