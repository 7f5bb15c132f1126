"""Measure speed and memory against mlx-lm: in one process, with the same weights, in turns.

Decoding starts from a cache that is filled with made-up keys and values, since computing thousands
of real ones takes minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...engine.speculation.draft_model import DraftModel
from ...models.base import LanguageModel
from ...models.llama.model import own_model
from ...models.llama.weight_layout import precision
from .batches import measure_forks, measure_many, measure_speculation
from .decoding import measure_decoding, measure_prefill, measure_startup
from .figures import FULL, BenchReport, Effort, Figure, this_machine
from .pair import Pair, make_pair

PARTS: dict[str, Callable[[Pair, Effort], list[Figure]]] = {
    "start-up": measure_startup,
    "decoding": measure_decoding,
    "prefill": measure_prefill,
    "forks": measure_forks,
    "many answers at once": measure_many,
    "speculation": measure_speculation,
}


def bench(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    effort: Effort = FULL,
    *,
    draft_model: DraftModel | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> BenchReport:
    """Measure a model as this package runs it against mlx-lm with the same weights.

    Raises:
        BenchError: a program failed, or the temporary folder cannot be written.
        UnsupportedModelError: the model is not of the Llama family.
    """
    model = own_model(model, "the bench")
    began = time.perf_counter()
    report_progress = on_progress or (lambda what: None)
    report_progress("loading the same weights with mlx-lm")
    figures = []
    with make_pair(model, tokenizer, draft_model) as pair:
        for name, measure in PARTS.items():
            report_progress(name)
            figures += measure(pair, effort)
    took = time.perf_counter() - began
    return BenchReport(this_machine(), precision(model).in_full(), effort, took, tuple(figures))
