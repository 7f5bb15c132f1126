"""Changes of the logits that any sampler can draw from: a bias, and penalties, as mlx-lm has them.

They are made in this order, with z the logit of a token in nats:

1. `logit_bias` (OpenAI): z ← z + bias.
2. `repetition_penalty` θ (Keskar et al., arXiv 1909.05858): of every token that stands in the
   prompt or the answer, z ← z / θ if z > 0, else z ← z · θ.
3. `presence_penalty` q and `frequency_penalty` f (OpenAI): z ← z − q − n f, if the token stands
   n > 0 times in the answer. The prompt does not count.

The last `WINDOW` tokens of the text are considered. Only the draw sees the result: metrics,
thresholds and log probabilities are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

from ..errors import SamplerError

WINDOW = 1024

Processor = Callable[[mx.array, mx.array], mx.array]  # takes tokens `(n,)` and logits `(1, vocab)`


class Penalties(NamedTuple):
    """What changes the logits of one row before its token is drawn."""

    of_text: tuple[Processor, ...]
    of_answer: tuple[Processor, ...]
    biased: tuple[int, ...] = ()  # the tokens that `logit_bias` names

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Penalties | None:
        """Return the changes that the parameters above ask for; None for none."""
        bias: Mapping[int, float] = given.get("logit_bias") or {}
        repetition = given.get("repetition_penalty", 1.0)
        of_text = make_logits_processors(
            logit_bias=dict(bias) or None,
            repetition_penalty=float(repetition) if repetition != 1.0 else None,
            repetition_context_size=WINDOW,
        )
        of_answer = make_logits_processors(
            presence_penalty=float(given.get("presence_penalty", 0.0)),
            presence_context_size=WINDOW,
            frequency_penalty=float(given.get("frequency_penalty", 0.0)),
            frequency_context_size=WINDOW,
        )
        found = cls(tuple(of_text), tuple(of_answer), tuple(bias))
        return found if of_text or of_answer else None

    def check(self, vocab_size: int) -> None:
        """Check that a model has the tokens that are biased: MLX writes beyond an array silently.
        Raises `SamplerError` if it does not."""
        if beyond := [token for token in self.biased if token >= vocab_size]:
            raise SamplerError(
                f"logit_bias names token {beyond[0]}, and this model has {vocab_size} tokens: leave"
                " it out"
            )

    def __call__(self, logits: mx.array, text: mx.array, answered: int) -> mx.array:
        """Return changed logits `(1, vocab)`, after the last tokens of prompt and answer, of which
        so many are the answer's."""
        logits = logits.astype(mx.float32)
        for process in self.of_text:
            logits = process(text, logits)
        for process in self.of_answer:
            logits = process(text[max(0, text.size - answered) :], logits)
        return logits
