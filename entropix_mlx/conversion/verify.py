"""Comparing what a converted model, its source and transformers predict for the same texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import mlx.core as mx

from ..checkpoints.loading import load
from ..checkpoints.locate import locate
from ..errors import first_line
from .recipe import Recipe

TEXTS = (
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "def add(a, b):\n    return a + b\n",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    "Wer nicht wagt, der nicht gewinnt.",
)
PASSAGE = (
    "The lighthouse stood at the end of a long spit of rock, and every evening the keeper walked"
    " out to it with a lamp and a basket. In summer the walk was easy. In winter the waves broke"
    " over the path, and he had to wait for the tide. People in the village said that nobody needed"
    " the light any more, since ships could find their way without it, but he went all the same."
)
"""The text whose perplexity is measured. Like the others it was written for this purpose."""


@dataclass(frozen=True)
class Limit:
    """How far the predictions of a good copy may be from those of its source."""

    precision: str
    kl: float
    """The largest mean divergence, in bits a token."""
    top1_agreement: float
    """The smallest share of positions where the most probable token is the same."""


ROUNDED = Limit("16-bit numbers", 0.002, 0.98)
"""For a copy that only changed the type of its numbers, or unpacked them."""
QUANTIZED = {
    8: Limit("8 bits", 0.01, 0.93),
    6: Limit("6 bits", 0.12, 0.8),
    5: Limit("5 bits", 0.5, 0.65),
    4: Limit("4 bits", 2.0, 0.5),
    3: Limit("3 bits", 2.0, 0.4),
    2: Limit("2 bits", 2.0, 0.4),
}
"""For quantized copies, by bits a weight.

The limits are at least three times what the demo model loses, in groups of 32 and of 64 weights:
0.0023 bits and 3 % of the top tokens with 8 bits, 0.035 and 9 % with 6, 0.15 and 20 % with 5, 0.69
and 34 % with 4. Larger models lose less. With 3 and 2 bits it loses 2.4 and 18 bits: these are no
good copies, so their limits stay near those of 4 bits.
"""

TRUE_KL = 0.01
"""The largest divergence from transformers, which computes in float32: what half precision
costs."""


def limit_of(recipe: Recipe) -> Limit:
    """Return what the copy that a recipe makes is held to; exact recipes are held to 0 instead."""
    return ROUNDED if recipe.bits is None else QUANTIZED[recipe.bits]


@dataclass(frozen=True)
class Comparison:
    """How a converted model's predictions differ from those of its source."""

    tokens: int
    """Positions compared; 0 if the two read the same texts as different tokens."""
    max_difference: float
    """The largest difference of any two logits; NaN if any of them is not finite."""
    kl: float
    """Mean divergence of the converted model from its source, in bits a token; NaN likewise."""
    top1_agreement: float
    """The share of positions where the most probable token is the same."""
    source_perplexity: float
    """Of `PASSAGE`; NaN if the model's predictions for it are."""
    perplexity: float
    true_kl: float | None = None
    """Mean divergence of the source, as loaded here, from transformers' predictions, in bits."""
    uncompared: str = ""
    """Why transformers' predictions are not known."""

    def fault(self, recipe: Recipe) -> str | None:
        """Return what is wrong with the result of a recipe, or None."""
        if not self.tokens:
            return "its tokenizer splits texts in another way"
        if not all(map(math.isfinite, (self.max_difference, self.kl, self.perplexity))):
            return "its predictions are not finite"
        if recipe.exact:
            return "it is not exact" if self.max_difference else self._untruth()
        limit = limit_of(recipe)
        if self.kl > limit.kl:
            return (
                f"it diverges by {self.kl:.3g} bits a token, and good copies in"
                f" {limit.precision} by at most {limit.kl:g}"
            )
        if self.top1_agreement < limit.top1_agreement:
            return (
                f"{self.top1_agreement:.1%} of its most probable tokens are the source's, and of"
                f" good copies in {limit.precision} at least {limit.top1_agreement:.0%}"
            )
        return self._untruth()

    def _untruth(self) -> str | None:
        if self.true_kl is None or self.true_kl <= TRUE_KL:
            return None
        return (
            f"its source diverges by {self.true_kl:.3g} bits a token from what transformers"
            f" predicts, and may by at most {TRUE_KL:g}: please report this model"
        )


def verify(source: str | Path, out: str | Path) -> Comparison:
    """Load a model and its copy, one after the other, and compare their logits.

    Raises:
        EntropixError: whatever `loading.load` raises.
    """
    tokens, expected = predict(source)
    own_tokens, found = predict(out)
    if own_tokens != tokens:
        return Comparison(0, math.inf, math.inf, 0.0, math.inf, math.inf)
    finite = all(mx.isfinite(logits).all().item() for logits in (*expected, *found))
    differences = [float(mx.abs(a - b).max()) for a, b in zip(expected, found, strict=True)]
    agreements = [
        a.argmax(axis=-1) == b.argmax(axis=-1) for a, b in zip(expected, found, strict=True)
    ]
    truth = predict_by_transformers(source, tokens)
    passage = tokens[-1]
    return Comparison(
        tokens=sum(map(len, tokens)),
        # Python's max and min may drop a NaN, and the copy would pass.
        max_difference=max(differences) if finite else math.nan,
        kl=_divergence(expected, found) if finite else math.nan,
        top1_agreement=float(mx.concatenate(agreements).mean()),
        source_perplexity=_perplexity(_logprobs(expected[-1]), passage),
        perplexity=_perplexity(_logprobs(found[-1]), passage),
        true_kl=None if isinstance(truth, str) else _divergence(truth, expected),
        uncompared=truth if isinstance(truth, str) else "",
    )


def predict(path: str | Path) -> tuple[list[list[int]], list[mx.array]]:
    """Return the tokens of each text, and the float32 logits `(tokens, vocab)` at each of them."""
    model, tokenizer = load(path)
    tokens = [tokenizer.encode(text) for text in (*TEXTS, PASSAGE)]
    logits = [model(mx.array([ids])).logits[0].astype(mx.float32) for ids in tokens]
    mx.eval(logits)
    del model
    mx.clear_cache()
    return tokens, logits


def predict_by_transformers(source: str | Path, tokens: list[list[int]]) -> list[mx.array] | str:
    """Return the logits at each token by transformers, or why they are not known."""
    try:
        torch = import_module("torch")
    except ImportError:
        return "torch is not installed (pip install torch)"
    try:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(  # it runs no code of the model
            locate(source), dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
        with torch.no_grad():
            return [mx.array(model(torch.tensor([ids])).logits[0].numpy()) for ids in tokens]
    except Exception as error:  # whatever a model makes it stumble over
        return f"transformers cannot load it ({first_line(error)})"


def _divergence(expected: list[mx.array], found: list[mx.array]) -> float:
    """Return the mean divergence of predictions from those expected, in bits a token."""
    pairs = [(_logprobs(a), _logprobs(b)) for a, b in zip(expected, found, strict=True)]
    divergences = mx.concatenate([(mx.exp(p) * (p - q)).sum(axis=-1) for p, q in pairs])
    mean = float(divergences.mean()) / math.log(2)
    return mean if math.isnan(mean) else max(0.0, mean)


def _logprobs(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _perplexity(logprobs: mx.array, tokens: list[int]) -> float:
    """Return exp of the mean surprise of each token after the first; capped before it overflows."""
    said = mx.take_along_axis(logprobs[:-1], mx.array(tokens[1:])[:, None], axis=-1)
    surprise = -float(said.mean())
    return math.nan if math.isnan(surprise) else math.exp(min(700.0, surprise))
